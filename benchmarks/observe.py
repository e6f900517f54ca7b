"""Time one observation of the LP, ours and others', at the same nodes of the same solve.

    python benchmarks/observe.py [rows columns]

All implementations take turns at every node, so that a busy machine slows them all; the table
shows the median over the nodes and how many times longer each takes than ours.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pyscipopt import SCIP_RESULT, Branchrule, Model

from instances import FAMILIES
from instances.writing import scip_model
from solver_plugins.observation import Observer, has_fast_path, observe, plain_observe
from solver_plugins.parameters import apply_protocol

NODES = 60


def pyscipopt_graph(model: Model) -> list[np.ndarray]:
    """PySCIPOpt's own representation, and its lists as arrays."""
    *lists, _ = model.getBipartiteGraphRepresentation()
    return [np.array(features, dtype=np.float32) for features in lists]


def contenders() -> dict[str, Callable[[Model], Any]]:
    """Return what is compared; the first is ours, as the branching rule uses it."""
    kept = Observer()
    found: dict[str, Callable[[Model], Any]] = {
        "Observer.observe (C, kept from node to node)": kept.observe,
        "the same again at once (warm caches)": kept.observe,
        "observe (C, from nothing)": observe,
        "plain_observe (PySCIPOpt calls)": plain_observe,
        "getBipartiteGraphRepresentation + NumPy": pyscipopt_graph,
    }
    try:
        from gyozas.observations import NodeBipartiteEcole
    except ImportError:
        print("gyozas is not installed and left out")
    else:
        fresh, cached = NodeBipartiteEcole(), NodeBipartiteEcole(cache=True)
        found["gyozas NodeBipartite"] = lambda model: fresh.extract(model, False)
        found["gyozas NodeBipartite, cached"] = lambda model: cached.extract(model, False)
    return found


class Stopwatch(Branchrule):
    """Lets every contender observe each node, then leaves the branching to SCIP."""

    def __init__(self) -> None:
        self.contenders = contenders()
        self.milliseconds: dict[str, list[float]] = {name: [] for name in self.contenders}
        self.nodes = 0

    def branchexeclp(self, allowaddcons: bool) -> dict[str, Any]:
        """Time one node."""
        for name, contender in self.contenders.items():
            started = time.perf_counter()
            contender(self.model)
            self.milliseconds[name].append(1e3 * (time.perf_counter() - started))
        self.nodes += 1
        if self.nodes == NODES:
            self.model.interruptSolve()
        return {"result": SCIP_RESULT.DIDNOTRUN}

    def branchexecps(self, allowaddcons: bool) -> dict[str, Any]:
        """Leave a node without an LP to SCIP."""
        return {"result": SCIP_RESULT.DIDNOTRUN}


def measure(rows: int, columns: int) -> None:
    """Print the table for a set cover of this size."""
    milp = FAMILIES["setcover"].instance("paper", "test", 0, 1, {"rows": rows, "columns": columns})
    model = scip_model(milp)
    model.hideOutput()
    apply_protocol(model, "gasse", seed=0)
    # SCIP's pseudocost rule: nodes come quickly, and there are enough of them.
    model.setParam("branching/pscost/priority", 1_000_000)
    stopwatch = Stopwatch()
    model.includeBranchrule(stopwatch, "stopwatch", "times observations", 2_000_000, -1, 1.0)
    model.optimize()
    print(f"set cover {rows} x {columns}, {stopwatch.nodes} nodes, C path: {has_fast_path()}")
    ours = statistics.median(next(iter(stopwatch.milliseconds.values())))
    for name, times in stopwatch.milliseconds.items():
        median = statistics.median(times)
        print(
            f"  {name:48s} {median:9.3f} ms   x {median / ours:7.1f}   (best {min(times):.3f} ms)"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    size = [int(argument) for argument in sys.argv[1:]]
    for rows, columns in [size] if size else [(400, 750), (500, 1000)]:
        measure(rows, columns)
