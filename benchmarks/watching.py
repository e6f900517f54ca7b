"""What measuring a solve costs it: the same trees with and without the event handler of `solve`.

    python benchmarks/watching.py

CPU time of the process, with and without in turn, the median of the ratios of pairs. Set cover has
nodes as evaluations have them; the knapsack has the smallest LPs and thus the worst case.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from instances import FAMILIES
from instances.writing import write
from solver_plugins.episode import read_instance
from solver_plugins.parameters import apply_protocol
from solver_plugins.solve import _Watch, new_model, prefer_rule

PAIRS = 7


def cpu_seconds(file: Path, rule: str, nodes: int, watched: bool) -> tuple[float, int]:
    """Solve and return the CPU time and the number of nodes."""
    model = new_model()
    read_instance(model, file)
    apply_protocol(model, "gasse", 0, 3600)
    model.setParam("limits/totalnodes", nodes)
    prefer_rule(model, rule)
    if watched:
        model.includeEventhdlr(_Watch(), "watch", "")
    started = time.process_time()
    model.optimize()
    return time.process_time() - started, model.getNTotalNodes()


def write_knapsack(path: Path) -> None:
    """Write a problem with many nodes and tiny LPs."""
    rng = random.Random(2)
    names = [f"x{j}" for j in range(40)]
    rows = [[rng.randint(10, 60) for _ in names] for _ in range(8)]
    sums = [" + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True)) for row in rows]
    lines = ["Maximize", " + ".join(f"{rng.randint(20, 50)} {x}" for x in names), "Subject To"]
    lines += [f"{total} <= {sum(row) / 3}" for total, row in zip(sums, rows, strict=True)]
    path.write_text("\n".join([*lines, "Binary", *names, "End"]))


def main() -> None:
    """Print a line a problem."""
    with tempfile.TemporaryDirectory() as folder:
        knapsack, cover = Path(folder) / "knapsack.lp", Path(folder) / "cover.lp"
        write_knapsack(knapsack)
        write(FAMILIES["setcover"].instance("paper", "test", 0, 1), cover)
        for name, file, nodes in (("set cover", cover, 200), ("knapsack", knapsack, 2000)):
            ratios, seconds, count = [], [], 0
            for _ in range(PAIRS):
                plain, count = cpu_seconds(file, "mostinf", nodes, watched=False)
                watched, same = cpu_seconds(file, "mostinf", nodes, watched=True)
                assert same == count
                ratios.append(watched / plain)
                seconds.append(plain)
            print(
                f"{name}: {count} nodes of {1000 * statistics.median(seconds) / count:.2f} ms, "
                f"watched {statistics.median(ratios):.3f} times (from {min(ratios):.3f} to "
                f"{max(ratios):.3f})"
            )


if __name__ == "__main__":
    main()
