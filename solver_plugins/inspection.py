"""Looking at an instance before learning from it: its size, its presolve, and a short solve."""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pyscipopt import Constraint, Model

from solver_plugins.parameters import apply_protocol
from solver_plugins.reading import read_model

# Handlers whose constraints are rows of the LP from the start, so that a state shows them.
_LINEAR = ("linear", "setppc", "logicor", "knapsack", "varbound")
_FEW_NODES = 10
_FIRST = 536_870_911  # a priority above every rule of SCIP


@dataclass(frozen=True)
class Inspection:
    """What one instance looks like, and how SCIP got on with it."""

    path: str
    variables: dict[str, int]  # binary, integer, implicit, continuous -> how many
    rows: int
    nonzeros: int
    other_constraints: dict[str, int]  # by SCIP's name, those that are not linear
    presolved_variables: int
    presolved_rows: int
    presolved_nonzeros: int
    presolve_seconds: float
    status: str  # SCIP's word
    nodes: int
    seconds: float  # of presolving and solving
    gap: float  # relative, infinite without a solution
    estimated_seconds: float | None  # of a whole solve, by SCIP's guess of its tree

    @property
    def obstacle(self) -> str | None:
        """What makes learning to branch on it pointless, the worst first; None if nothing does."""
        if self.status == "infeasible":
            return "infeasible, there is no solution to search for"
        if self.status in ("unbounded", "inforunbd"):
            return "unbounded, a bound or a constraint is missing"
        if self.other_constraints.get("nonlinear"):
            return "nonlinear constraints, only linear ones can be learned from"
        if not self.variables["binary"] + self.variables["integer"]:
            return "no integer variables, nothing to branch on"
        if self.solved and self.nodes <= 1:
            return "solved at the root, SCIP never branches"
        return None

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a user should know though learning is possible."""
        found = [
            f"{count:,} {kind} constraints are not rows of the LP: a policy does not see them"
            for kind, count in self.other_constraints.items()
            if kind != "nonlinear"
        ]
        if self.solved and 1 < self.nodes < _FEW_NODES:
            found.append(f"only {self.nodes} nodes: little to learn from, little to gain")
        if self.unfinished and self.nodes <= 1:
            found.append("still at the root: a longer --time-limit shows whether SCIP branches")
        if self.unfinished and math.isinf(self.gap):
            found.append("no solution found in this time")
        return tuple(found)

    @property
    def solved(self) -> bool:
        """Whether an optimal solution was found and proved."""
        return self.status == "optimal"

    @property
    def unfinished(self) -> bool:
        """Whether the time was too short."""
        return self.status == "timelimit"


def inspect(path: str | Path, time_limit: float) -> Inspection:
    """Read an instance and solve it for a while, as when collecting: pseudocosts branch."""
    model = read_model(path)
    variables = {
        "binary": model.getNBinVars(),
        "integer": model.getNIntVars(),
        "implicit": model.getNImplVars(),
        "continuous": model.getNContVars(),
    }
    handlers = Counter(constraint.getConshdlrName() for constraint in model.getConss(False))
    rows, nonzeros = _size(model)
    apply_protocol(model, "gasse", time_limit=time_limit)
    # SCIP's default rule finishes small trees by strong branching alone, at a root that never
    # branches; what there is to learn shows without that.
    model.setParam("branching/pscost/priority", _FIRST)
    started = time.perf_counter()
    model.presolve()
    presolve_seconds = time.perf_counter() - started
    presolved = model.getNVars(), *_size(model)
    model.optimize()
    seconds = time.perf_counter() - started
    status = str(model.getStatus())
    nodes = int(model.getNTotalNodes())
    return Inspection(
        path=str(path),
        variables=variables,
        rows=rows,
        nonzeros=nonzeros,
        other_constraints={k: n for k, n in handlers.items() if k not in _LINEAR},
        presolved_variables=presolved[0],
        presolved_rows=presolved[1],
        presolved_nonzeros=presolved[2],
        presolve_seconds=presolve_seconds,
        status=status,
        nodes=nodes,
        seconds=seconds,
        gap=float(model.getGap()) if model.getNSols() else math.inf,
        estimated_seconds=_estimate(model, nodes, seconds) if status == "timelimit" else None,
    )


def _size(model: Model) -> tuple[int, int]:
    """Return the numbers of constraints and of their non-zeros, at the stage the model is in."""
    constraints = model.getConss()
    return len(constraints), sum(_length(model, constraint) for constraint in constraints)


def _length(model: Model, constraint: Constraint) -> int:
    try:
        return int(model.getConsNVars(constraint))
    except TypeError:  # its handler does not tell
        return 0


def _estimate(model: Model, nodes: int, seconds: float) -> float | None:
    expected = float(model.getTreesizeEstimation())
    if nodes < _FEW_NODES or expected < nodes:
        return None
    return seconds * expected / nodes
