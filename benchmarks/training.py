"""Time forward and backward in training, against the usual module.

    python benchmarks/training.py [threads]

Real states of set cover 400 x 750: ours in batches of 64, the usual module one graph at a time, as
the published code must. Then graphs of the instance task, 20 variables and 6 constraints each, in
batches. CPU time of one thread, or the wall clock with more of them.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch
from states import State, real_states
from straightforward import StraightforwardDualAttention, StraightforwardGNN
from torch import Tensor
from torch.nn.functional import log_softmax

from learn2branch import BipartiteGraph, build_model
from learn2branch.features import INSTANCE
from learn2branch.kernels import keep_memory

BATCH, REPEATS = 64, 3


def join(states: list[State]) -> tuple[BipartiteGraph, Tensor, list[int]]:
    """Return a batch, its candidates and how many there are of each graph."""
    batch = BipartiteGraph.batch([graph for graph, _ in states])
    starts = batch.variable_ptr.tolist()
    candidates = [
        candidates + start for (_, candidates), start in zip(states, starts, strict=False)
    ]
    return batch, torch.cat(candidates), [part.shape[0] for part in candidates]


def loss(scores: Tensor, counts: list[int]) -> Tensor:
    """Cross-entropy with the first candidate of each graph as the expert's choice."""
    return -sum(log_softmax(part, dim=0)[0] for part in scores.split(counts))  # type: ignore


def seconds_per_sample(step: Callable[[], None], samples: int, clock: Callable[[], float]) -> float:
    """Return the median over a few repetitions, after one to warm up."""
    step()
    seconds = []
    for _ in range(REPEATS):
        started = clock()
        step()
        seconds.append((clock() - started) / samples)
    return statistics.median(seconds)


def compare(clock: Callable[[], float]) -> None:
    """Print the table of ratios on real states."""
    states = real_states(400, 750, BATCH)
    batch, candidates, counts = join(states)
    print(f"{BATCH} states of set cover 400 x 750, {batch.num_edges // BATCH:,} non-zeros each")
    print(f"  {'':44s} {'ms/sample':>9s} {'x ours':>7s}")
    for name, usual_class in (
        ("dualattn", StraightforwardDualAttention),
        ("bgnn", StraightforwardGNN),
    ):
        torch.manual_seed(0)
        model = build_model(name)
        model.fit_normaliser(graph for graph, _ in states[:8])
        usual = usual_class(model)

        def ours(model: torch.nn.Module = model) -> None:
            model.zero_grad()
            loss(model(batch, candidates), counts).backward()

        def one_by_one(usual: torch.nn.Module = usual) -> None:
            usual.zero_grad()
            for graph, chosen in states[:6]:
                loss(usual(graph)[chosen], [chosen.shape[0]]).backward()

        rows = {f"{name}, batch of {BATCH}": seconds_per_sample(ours, BATCH, clock)}
        rows[f"{name}, straightforward, one by one"] = seconds_per_sample(one_by_one, 6, clock)
        if find_spec("torch_scatter"):
            scatter = build_model(name, backend="scatter")
            scatter.load_state_dict(model.state_dict())
            rows[f"{name}, batch of {BATCH}, torch-scatter"] = seconds_per_sample(
                lambda model=scatter: ours(model),
                BATCH,
                clock,  # type: ignore[misc]
            )
        best = next(iter(rows.values()))
        for label, seconds in rows.items():
            print(f"  {label:44s} {1e3 * seconds:9.2f} {seconds / best:7.1f}")


def small_graphs(clock: Callable[[], float]) -> None:
    """Print how many graphs of the instance task pass forward and backward in a second."""
    generator = torch.Generator().manual_seed(0)

    def graph() -> BipartiteGraph:
        place = torch.randperm(120, generator=generator)[:60]
        return BipartiteGraph(
            torch.randn(6, len(INSTANCE.constraint), generator=generator),
            torch.stack([place // 20, place % 20]),
            torch.randn(60, generator=generator),
            torch.randn(20, len(INSTANCE.variable), generator=generator),
        )

    graphs = [graph() for _ in range(1000)]
    for name in ("dualattn", "bgnn"):
        model = build_model(name, "instance")
        for count in (BATCH, len(graphs)):
            batch = BipartiteGraph.batch(graphs[:count])

            def step(model: torch.nn.Module = model, batch: BipartiteGraph = batch) -> None:
                model.zero_grad()
                model(batch).square().sum().backward()

            rate = 1 / seconds_per_sample(step, count, clock)
            print(f"  {name}, 20 x 6 graphs in batches of {count}: {rate:,.0f} graphs a second")


if __name__ == "__main__":
    threads = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    torch.set_num_threads(threads)
    keep_memory()
    print(f"{threads} thread(s)")
    chosen_clock = time.thread_time if threads == 1 else time.perf_counter
    compare(chosen_clock)
    small_graphs(chosen_clock)
