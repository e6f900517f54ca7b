"""Samples a second on our SCIP and on that of Ecole, where it is installed, in turn by episodes.

    python benchmarks/backends.py [INSTANCES] [NODES]

Both backends of `l2b collect` run the same instances of set cover 400 x 750 with the paper's
expert probability, NODES nodes each at most, and keep the samples in memory. CPU time hardly feels
other work on the machine; the times of a sample are wall time. With NODES 1 an episode is the root.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from instances import FAMILIES
from instances.writing import write
from solver_plugins import Episode, ecole, run_episode

SIZE = {"rows": 400, "columns": 750}


@dataclass
class Sum:
    """What the episodes of a backend took together."""

    episodes: int = 0
    samples: int = 0
    candidates: int = 0
    nodes: int = 0
    cpu: float = 0.0
    wall: float = 0.0
    expert: float = 0.0
    observing: float = 0.0

    def add(self, episode: Episode, cpu: float) -> None:
        """Add an episode."""
        self.episodes += 1
        self.samples += episode.num_samples
        self.candidates += sum(len(sample.candidates) for sample in episode.samples)
        self.nodes += episode.nodes
        self.cpu += cpu
        self.wall += episode.seconds
        self.expert += episode.expert_seconds
        self.observing += episode.observe_seconds


def main() -> None:
    """Print a line a backend."""
    torch.set_num_threads(1)
    instances, nodes = (int(x) for x in (*sys.argv[1:], *("20", "200")[len(sys.argv) - 1 :]))
    sums = {"scip": (run_episode, Sum()), "ecole": (ecole.run_episode, Sum())}
    with tempfile.TemporaryDirectory() as folder:
        for k in range(1, instances + 1):
            path = Path(folder) / f"{k}.lp"
            write(FAMILIES["setcover"].instance("paper", "test", 0, k, SIZE), path)
            for run, total in sums.values():
                began = time.process_time()
                episode = run(path, seed=k, node_limit=nodes)
                total.add(episode, time.process_time() - began)
    for name, (_, total) in sums.items():
        samples = max(total.samples, 1)
        print(
            f"{name}: {total.cpu / total.episodes:.2f} s of CPU an episode, {total.nodes} nodes, "
            f"{total.samples} samples, {total.samples / total.cpu:.2f} a second of CPU, "
            f"{total.samples / total.wall:.2f} of wall time"
        )
        print(
            f"  a sample: {total.candidates / samples:.0f} candidates, scored in "
            f"{1e3 * total.expert / samples:.0f} ms, observed in "
            f"{1e3 * total.observing / samples:.2f} ms"
        )


if __name__ == "__main__":
    main()
