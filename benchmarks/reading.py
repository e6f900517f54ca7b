"""Reading samples: our shards against gzip-pickles as Ecole's users write them, side by side.

    python benchmarks/reading.py [STORE]

STORE is a folder that `l2b collect` wrote; without it a small one is collected at the paper's size
of set cover. A pickle holds what Ecole's observation holds (float64, an index of 64 bits), and
reading one ends, as with ours, in float32 tensors. Times are the best of several interleaved turns.
"""

from __future__ import annotations

import gzip
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from learn2branch.graph import BipartiteGraph
from learn2branch.kernels import keep_memory
from learn2branch.samples import Sample
from learn2branch.shards import read_shard
from pipelines.branching.collect import collect

TURNS = 7


def write_pickle(sample: Sample, path: Path) -> None:
    """Write a sample as the imitation scripts for Ecole do."""
    rows, edges, values, variables = (tensor.numpy() for tensor in sample.state.tensors())
    scores = np.full(len(variables), np.nan)
    scores[sample.candidates.numpy()] = sample.scores.numpy()
    observation = (
        rows.astype(np.float64),
        (edges.astype(np.uint64), values.astype(np.float64)),
        variables.astype(np.float64),
    )
    data = [observation, sample.choice, sample.candidates.numpy().astype(np.uint64), scores]
    with gzip.open(path, "wb") as file:
        pickle.dump({"episode": 0, "instance": "x.lp", "seed": 0, "data": data}, file)


def read_pickle(path: Path) -> BipartiteGraph:
    """Read it back into tensors."""
    with gzip.open(path, "rb") as file:
        rows, (edges, values), variables = pickle.load(file)["data"][0]
    return BipartiteGraph(
        torch.from_numpy(rows.astype(np.float32)),
        torch.from_numpy(edges.astype(np.int64)),
        torch.from_numpy(values.astype(np.float32)),
        torch.from_numpy(variables.astype(np.float32)),
    )


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keep_memory()  # as a training does
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            store = Path(sys.argv[1])
        else:
            store, _ = collect("setcover", samples=100, jobs=2, out=folder, data=f"{folder}/data")
        shards = sorted(store.rglob("episode-*.npz"))[:20]
        pickles: list[list[Path]] = []
        for number, shard in enumerate(shards):
            pickles.append([])
            for position, sample in enumerate(read_shard(shard).samples):
                pickles[-1].append(Path(folder) / f"sample_{number}_{position}.pkl")
                write_pickle(sample, pickles[-1][-1])
        ours, theirs = np.full((2, len(shards)), np.inf)
        for _ in range(TURNS):
            for i, shard in enumerate(shards):
                ours[i] = min(ours[i], seconds(lambda shard=shard: read_shard(shard)))  # type: ignore[misc]
                theirs[i] = min(
                    theirs[i],
                    seconds(lambda i=i: [read_pickle(p) for p in pickles[i]]),  # type: ignore[misc]
                )
        count = sum(len(paths) for paths in pickles)
        size = sum(shard.stat().st_size for shard in shards) / count / 1024
        their_size = sum(p.stat().st_size for paths in pickles for p in paths) / count / 1024
        print(f"{count} samples of {len(shards)} episodes in {store}")
        print(f"{'':14}{'KiB a sample':>14}{'ms a sample':>14}")
        print(f"{'gzip-pickle':14}{their_size:14.1f}{theirs.sum() / count * 1e3:14.3f}")
        print(f"{'shard':14}{size:14.1f}{ours.sum() / count * 1e3:14.3f}")
        print(f"reading is {theirs.sum() / ours.sum():.1f} times faster")


if __name__ == "__main__":
    main()
