"""Real states for the benchmarks: nodes of set cover solves, and what a node costs SCIP itself.

Times are CPU seconds of one thread, which a busy machine distorts less than the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from pyscipopt import SCIP_RESULT, Branchrule, Model
from torch import Tensor

from instances import FAMILIES
from instances.writing import scip_model
from learn2branch import BipartiteGraph
from solver_plugins.observation import Observer
from solver_plugins.parameters import apply_protocol

State = tuple[BipartiteGraph, Tensor]  # and its candidates


def set_cover(rows: int, columns: int, k: int = 1) -> Model:
    """Return the k-th test instance of this size, to be branched on by pseudocosts."""
    milp = FAMILIES["setcover"].instance("paper", "test", 0, k, {"rows": rows, "columns": columns})
    model = scip_model(milp)
    model.hideOutput()
    apply_protocol(model, "gasse", seed=0)
    model.setParam("branching/pscost/priority", 1_000_000)
    return model


class Visitor(Branchrule):
    """Calls a function at every node and leaves the branching to SCIP."""

    def __init__(self, visit: Callable[[Model], bool]) -> None:
        self.visit = visit

    def branchexeclp(self, allowaddcons: bool) -> dict[str, Any]:
        """Visit a node; stop if there is enough."""
        if not self.visit(self.model):
            self.model.interruptSolve()
        return {"result": SCIP_RESULT.DIDNOTRUN}


def _solve(model: Model, visit: Callable[[Model], bool]) -> None:
    rule = Visitor(visit)
    model.includeBranchrule(rule, "visitor", "visits nodes", 2_000_000, -1, 1.0)
    model.optimize()


def real_states(rows: int, columns: int, count: int) -> list[State]:
    """Return states of as many instances as it takes, 32 of each at most, as the rule sees them."""
    states: list[State] = []
    k = 0
    while len(states) < count:
        k += 1
        observer, wanted = Observer(), min(count, len(states) + 32)

        def visit(model: Model, observer: Observer = observer, wanted: int = wanted) -> bool:
            states.append((observer.observe(model), observer.candidates(model)))
            return len(states) < wanted

        _solve(set_cover(rows, columns, k), visit)
    return states


def seconds_per_node(rows: int, columns: int, instances: int = 3) -> float:
    """Return what SCIP needs for a node after the root, on average over solves with `pscost`."""
    seconds, nodes = 0.0, 0
    for k in range(1, instances + 1):
        starts: list[float] = []

        def visit(_: Model, starts: list[float] = starts) -> bool:
            starts.append(time.thread_time())
            return True

        model = set_cover(rows, columns, k)
        _solve(model, visit)
        seconds += time.thread_time() - starts[0]
        nodes += model.getNTotalNodes() - 1
    return seconds / nodes
