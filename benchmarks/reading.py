"""Reading samples: our shards against gzip-pickles as Ecole's users write them, side by side.

    python benchmarks/reading.py [STORE]

STORE is a folder that `l2b collect` wrote; without it a small one is collected at the paper's size
of set cover. A pickle holds what Ecole's observation holds (float64, an index of 64 bits), and
reading one ends, as with ours, in float32 tensors. Files are in the system's cache. Times are CPU
time, the least of many interleaved turns, so that other work on the machine hardly matters.
"""

from __future__ import annotations

import gzip
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from learn2branch.graph import BipartiteGraph
from learn2branch.kernels import keep_memory
from learn2branch.samples import Sample
from learn2branch.shards import read_shard
from pipelines.branching.collect import collect

TURNS = 15
EPISODES = 60  # at most
LENGTHS = ((1, 3), (4, 7), (8, 14), (15, 10**6))  # of episodes, to show apart


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
    """Return the CPU time that something takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    keep_memory()  # as a training does
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            store = Path(sys.argv[1])
        else:
            store, _ = collect("setcover", samples=100, jobs=2, out=folder, data=f"{folder}/data")
        shards = sorted(store.rglob("episode-*.npz"))[:EPISODES]
        pickles: list[list[Path]] = []
        for number, shard in enumerate(shards):
            pickles.append([])
            for position, sample in enumerate(read_shard(shard).samples):
                pickles[-1].append(Path(folder) / f"sample_{number}_{position}.pkl")
                write_pickle(sample, pickles[-1][-1])
        ours, theirs = np.full((2, len(shards)), np.inf)
        for _ in range(TURNS):
            for i, shard in enumerate(shards):
                ours[i] = min(ours[i], seconds(partial(read_shard, shard)))
                theirs[i] = min(theirs[i], seconds(partial(list, map(read_pickle, pickles[i]))))
        counts = np.array([len(paths) for paths in pickles])
        sizes = np.array([shard.stat().st_size for shard in shards])
        their_sizes = np.array([sum(p.stat().st_size for p in paths) for paths in pickles])
    print(f"{counts.sum()} samples of {len(shards)} episodes, a sample:")
    print("| episodes of | how many | pickle KiB | shard KiB | pickle ms | shard ms | faster |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for first, last in ((0, 10**6), *LENGTHS):
        some = (counts >= first) & (counts <= last)
        if not (count := counts[some].sum()):
            continue
        label = "all lengths" if first == 0 else f"{first} to {min(last, counts.max())} samples"
        ratio = theirs[some].sum() / ours[some].sum()
        print(
            f"| {label} | {some.sum()} | {their_sizes[some].sum() / count / 1024:.1f} "
            f"| {sizes[some].sum() / count / 1024:.1f} | {theirs[some].sum() / count * 1e3:.2f} "
            f"| {ours[some].sum() / count * 1e3:.3f} | {ratio:.1f} |"
        )


if __name__ == "__main__":
    main()
