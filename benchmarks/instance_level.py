"""Graphs a second in training on the instance task, and how much of it is arithmetic.

    python benchmarks/instance_level.py [processes]

Each process trains on one thread; the graphs of all are added up. The last column compares with
plain products of 16,384 x 64 by 64 x 128 matrices in the same process: what is at hand for anybody.
`paper` is the time of a thousand epochs of a thousand graphs at that speed.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from instances.foldable import foldable_milps
from instances.random_milp import random_milps
from learn2branch import build_model
from pipelines.instance_level.graphs import InstanceSet
from pipelines.instance_level.tasks import TASKS

COUNT, REPEATS = 1000, 5
CASES = [
    (backbone, size, dataset, batch)
    for backbone, size in (("dualattn", "full"), ("dualattn", "small"), ("bgnn", "full"))
    for dataset in ("unfoldable", "foldable")
    for batch in (64, 1000)
]


def seconds(step: Callable[[], object]) -> tuple[float, float]:
    """Return the median wall and CPU seconds of a step, after one to warm up."""
    step()
    walls, cpus = [], []
    for _ in range(REPEATS):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return statistics.median(walls), statistics.median(cpus)


def training_step(case: tuple[str, str, str, int]) -> tuple[InstanceSet, Callable[[], None]]:
    """Return the instances and what trains on a batch of them once."""
    torch.set_num_threads(1)
    backbone, size, dataset, batch_size = case
    make = random_milps if dataset == "unfoldable" else foldable_milps
    instances = InstanceSet(make(range(COUNT), seed=0), np.arange(COUNT) % 2)
    task, model = TASKS["feasibility"], build_model(backbone, task="instance", size=size)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    batch = instances.batch(range(batch_size))

    def train() -> None:
        optimizer.zero_grad()
        loss, _ = task.step(model, batch)
        (loss / batch_size).backward()
        optimizer.step()

    return instances, train


def count_flops(case: tuple[str, str, str, int]) -> float:
    """Return the floating-point operations of the dense products, for one graph."""
    _, train = training_step(case)
    with FlopCounterMode(display=False) as flops:
        train()
    return flops.get_total_flops() / case[-1]


def measure(case: tuple[str, str, str, int]) -> dict[str, float]:
    """Time batch building and training steps of one case."""
    instances, train = training_step(case)
    batch_size = case[-1]
    left, right = torch.randn(16_384, 64), torch.randn(64, 128)
    building = seconds(lambda: instances.batch(range(batch_size)))
    training = seconds(train)
    product = seconds(lambda: [left @ right for _ in range(20)])
    return {
        "graphs": batch_size / training[0],
        "graphs_per_cpu_second": batch_size / training[1],
        "building": batch_size / building[1],
        "product": 20 * 2 * 16_384 * 64 * 128 / product[1],
    }


def main() -> None:
    """Print the table."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    print(f"{processes} process(es) of one thread; wall clock for graphs/s, CPU time for the rest")
    print(
        "| model | set | batch | graphs/s | paper, s | graphs / CPU s | built / CPU s "
        "| MFLOP a graph | GFLOP / CPU s | of plain products |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    spawn = multiprocessing.get_context("spawn")
    # The compiled kernels are invisible to the counter: it watches a process without them.
    os.environ["LEARN2BRANCH_KERNELS"] = "0"
    with ProcessPoolExecutor(1, spawn) as pool:
        flops = list(pool.map(count_flops, CASES))
    del os.environ["LEARN2BRANCH_KERNELS"]
    with ProcessPoolExecutor(processes, spawn) as pool:
        for case, operations in zip(CASES, flops, strict=True):
            parts = list(pool.map(measure, [case] * processes))
            total = sum(part["graphs"] for part in parts)
            mean = {name: statistics.fmean(part[name] for part in parts) for name in parts[0]}
            rate = mean["graphs_per_cpu_second"] * operations
            backbone, size, dataset, batch = case
            print(
                f"| {backbone} {size} | {dataset} | {batch} | {total:,.0f} | {1e6 / total:,.0f} "
                f"| {mean['graphs_per_cpu_second']:,.0f} | {mean['building']:,.0f} "
                f"| {operations / 1e6:.1f} | {rate / 1e9:.1f} "
                f"| {100 * rate / mean['product']:.0f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
