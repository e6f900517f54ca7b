"""Time one decision of each policy, against the usual modules and against SCIP's own node.

    python benchmarks/inference.py [states|growth]

`states`: real states of set covers; all contenders take turns at every state, one thread, CPU time,
weights as initialised (they do not change the cost). `growth`: time and memory from 10^4 to 10^6
non-zeros, and the largest instance of the paper.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from learn2branch import BipartiteGraph, build_model, export_policy, load_policy
from learn2branch.features import STATE
from learn2branch.policy import Policy

STATES, ROUNDS = 24, 2
GROWTH = (10_000, 31_623, 100_000, 316_228, 1_000_000)


def policy_of(backbone: str, graphs: list[BipartiteGraph], **sizes: object) -> Policy:
    """Export a model with fresh weights and load it as a user does."""
    torch.manual_seed(0)
    model = build_model(backbone, **sizes)  # type: ignore[arg-type]
    model.fit_normaliser(graphs)
    with tempfile.TemporaryDirectory() as folder:
        return load_policy(export_policy(model, Path(folder) / "policy.pt"))


def compare_states(rows: int, columns: int) -> None:
    """Print the table for a set cover of this size."""
    from states import real_states, seconds_per_node
    from straightforward import StraightforwardDualAttention, StraightforwardGNN

    states = real_states(rows, columns, STATES)
    graphs = [graph for graph, _ in states]
    torch.manual_seed(0)
    dualattn, bgnn = build_model("dualattn"), build_model("bgnn")
    published = build_model("dualattn", edge_encoding="mlp")
    for model in (dualattn, bgnn, published):
        model.fit_normaliser(graphs[:8])
    full, small = policy_of("dualattn", graphs), policy_of("dualattn", graphs, size="small")
    script = policy_of("dualattn", graphs)
    script._native = None
    gnn = policy_of("bgnn", graphs)
    usual = StraightforwardDualAttention(dualattn)
    usual_mlp, usual_gnn = StraightforwardDualAttention(published), StraightforwardGNN(bgnn)
    contenders: dict[str, Callable[[BipartiteGraph, Tensor], Tensor]] = {
        "dualattn policy": lambda g, c: full(*g.tensors(), candidates=c),
        "dualattn policy, all variables": lambda g, _: full(*g.tensors()),
        "dualattn policy, small": lambda g, c: small(*g.tensors(), candidates=c),
        "dualattn policy, TorchScript only": lambda g, c: script(*g.tensors(), candidates=c),
        "bgnn policy": lambda g, c: gnn(*g.tensors(), candidates=c),
        "dualattn, straightforward": lambda g, _: usual(g),
        "dualattn, straightforward, edge MLP": lambda g, _: usual_mlp(g),
        "bgnn, straightforward": lambda g, _: usual_gnn(g),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    with torch.inference_mode():
        for _ in range(ROUNDS):
            for graph, candidates in states:
                for name, contender in contenders.items():
                    started = time.thread_time()
                    contender(graph, candidates)
                    times[name].append(time.thread_time() - started)
    node = seconds_per_node(rows, columns)
    edges = statistics.mean(graph.num_edges for graph in graphs)
    some = statistics.mean(candidates.shape[0] for _, candidates in states)
    print(
        f"set cover {rows} x {columns}: {len(states)} states, {edges:,.0f} non-zeros, "
        f"{some:.0f} candidates; a node costs SCIP {1e3 * node:.2f} ms"
    )
    ours = statistics.median(times["dualattn policy"])
    print(f"  {'':38s} {'ms':>8s} {'best':>8s} {'x policy':>9s} {'x node':>7s}")
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(
            f"  {name:38s} {1e3 * median:8.2f} {1e3 * min(seconds):8.2f} "
            f"{median / ours:9.2f} {median / node:7.2f}"
        )


def sparse_graph(constraints: int, variables: int, edges: int) -> BipartiteGraph:
    """Return a random graph, every variable in as many constraints as the next."""
    generator = torch.Generator().manual_seed(0)
    column = torch.arange(edges) % variables
    row = torch.randint(constraints, (edges,), generator=generator)
    return BipartiteGraph(
        torch.randn(constraints, len(STATE.constraint), generator=generator),
        torch.stack([row, column]),
        torch.rand(edges, generator=generator),
        torch.randn(variables, len(STATE.variable), generator=generator),
    )


def measure_one(constraints: int, variables: int, edges: int) -> None:
    """Print seconds and peak memory in MiB of one case; runs in a process of its own."""
    graph = sparse_graph(constraints, variables, edges)
    policy = policy_of("dualattn", [graph])
    before = _peak_memory()
    seconds = []
    for _ in range(5):
        # A copy of the edges, so that they are sorted anew: the cost of a first visit.
        index = graph.edge_index.clone()
        started = time.thread_time()
        policy(graph.constraint_features, index, graph.edge_values, graph.variable_features)
        seconds.append(time.thread_time() - started)
    print(min(seconds), max(_peak_memory() - before, 0.1), _peak_memory())


def _peak_memory() -> float:
    """Return the peak resident memory of this process in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure_growth() -> None:
    """Print time and memory over the number of non-zeros, with the slope in a log-log plot."""
    cases = [(edges // 60, edges // 30, edges) for edges in GROWTH]
    cases.append((1_484, 550_539, 1_101_078))
    heads = ("constraints", "variables", "non-zeros", "ms", "MiB", "peak MiB")
    print("  " + " ".join(f"{head:>11s}" for head in heads))
    results = []
    for case in cases:
        output = subprocess.run(
            [sys.executable, __file__, "one", *map(str, case)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        seconds, added, peak = map(float, output.split())
        results.append((case[2], seconds, added))
        print(
            f"  {case[0]:11,d} {case[1]:11,d} {case[2]:11,d} {1e3 * seconds:11.1f} "
            f"{added:11.0f} {peak:11.0f}"
        )
    for name, column in (("time", 1), ("memory", 2)):
        # Memory below 5 MiB is what the process had at hand already.
        sound = [r for r in results[: len(GROWTH)] if name == "time" or r[column] >= 5]
        points = [(math.log(r[0]), math.log(r[column])) for r in sound]
        slope = statistics.linear_regression(*zip(*points, strict=True)).slope
        print(f"  slope of {name}, log-log: {slope:.2f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    what = sys.argv[1] if len(sys.argv) > 1 else "both"
    if what == "one":
        measure_one(*map(int, sys.argv[2:5]))
    if what in ("states", "both"):
        for size in ((400, 750), (500, 1000)):
            compare_states(*size)
    if what in ("growth", "both"):
        measure_growth()
