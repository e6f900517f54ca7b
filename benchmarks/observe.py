"""Time one observation of the LP, ours and others', at the same nodes of the same solve.

    python benchmarks/observe.py [rows columns]

All implementations take turns at every node, so that a busy machine slows them all; the table
shows the median over the nodes and how many times longer each takes than ours. Ecole, where it is
installed, observes its own SCIP: a second search over the same instance goes on by a node whenever
ours does, and is observed at once.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyscipopt import SCIP_RESULT, Branchrule, Model

from instances import FAMILIES
from instances.milp import Milp
from instances.writing import scip_model, write
from learn2branch.errors import InputError
from solver_plugins.ecole import graph_of, import_ecole
from solver_plugins.observation import Observer, has_fast_path, observe, plain_observe
from solver_plugins.parameters import PROTOCOLS, apply_protocol

NODES = 60
# SCIP's pseudocost rule: nodes come quickly, and there are enough of them.
BRANCHING = {"branching/pscost/priority": 1_000_000}


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


class EcoleSearch:
    """A search on Ecole, with what it may be observed by."""

    def __init__(self, milp: Milp) -> None:
        ecole = import_ecole()
        with tempfile.TemporaryDirectory() as folder:
            write(milp, Path(folder) / "instance.lp")
            self.instance = ecole.scip.Model.from_file(f"{folder}/instance.lp")
        self.default, self.done = ecole.Default, True
        self.environment = ecole.environment.Branching(
            observation_function=None, scip_params=PROTOCOLS["gasse"] | BRANCHING
        )
        self.environment.seed(0)
        self.fresh, self.cached = (
            ecole.observation.NodeBipartite(cache=cache) for cache in (False, True)
        )
        self.contenders: dict[str, Callable[[], Any]] = {
            "Ecole NodeBipartite, cached": lambda: self.extract(self.cached),
            "the same again at once (warm caches), Ecole": lambda: self.extract(self.cached),
            "Ecole NodeBipartite": lambda: self.extract(self.fresh),
            "Ecole NodeBipartite, cached, and our tensors": lambda: graph_of(
                self.extract(self.cached)
            ),
        }

    def extract(self, function: Any) -> Any:
        """Observe the node it is at."""
        return function.extract(self.environment.model, False)

    def advance(self) -> None:
        """Go to the next node, or to the first one of another search."""
        if not self.done:
            *_, self.done, _ = self.environment.step(self.default)
        if self.done:
            *_, self.done, _ = self.environment.reset(self.instance)
            self.cached.before_reset(self.environment.model)


def ecole_search(milp: Milp) -> EcoleSearch | None:
    """Return a search on Ecole, where it is installed."""
    try:
        return EcoleSearch(milp)
    except InputError as error:
        print(f"Ecole is left out: {error}")
        return None


class Stopwatch(Branchrule):
    """Lets every contender observe each node, then leaves the branching to SCIP."""

    def __init__(self, milp: Milp) -> None:
        self.contenders, self.ecole = contenders(), ecole_search(milp)
        self.milliseconds: dict[str, list[float]] = defaultdict(list)
        self.nodes, self.nonzeros = 0, ""

    def branchexeclp(self, allowaddcons: bool) -> dict[str, Any]:
        """Time one node."""
        for name, contender in self.contenders.items():
            started = time.perf_counter()
            contender(self.model)
            self.milliseconds[name].append(1e3 * (time.perf_counter() - started))
        self.nonzeros = f"{observe(self.model).num_edges:,}"
        if self.ecole is not None:
            self.ecole.advance()
            for name, extract in self.ecole.contenders.items():
                started = time.perf_counter()
                extract()
                self.milliseconds[name].append(1e3 * (time.perf_counter() - started))
            edges = self.ecole.extract(self.ecole.fresh).edge_features
            self.nonzeros += f" (Ecole's {edges.nnz:,})"
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
    model.setParams(BRANCHING)
    stopwatch = Stopwatch(milp)
    model.includeBranchrule(stopwatch, "stopwatch", "times observations", 2_000_000, -1, 1.0)
    model.optimize()
    print(
        f"set cover {rows} x {columns}, {stopwatch.nodes} nodes, C path: {has_fast_path()}, "
        f"non-zeros at the last node: {stopwatch.nonzeros}"
    )
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
