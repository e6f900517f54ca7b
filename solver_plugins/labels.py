"""Labels by SCIP: is a small MILP given as arrays feasible, and what is its optimal value?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyscipopt import Model, quicksum

from learn2branch.errors import WorkError


@dataclass(frozen=True)
class Label:
    """What SCIP proved of an instance; the value is NaN where there is none."""

    feasible: bool
    bounded: bool  # False only for a feasible instance whose objective falls without end
    value: float


def solve_label(
    objective: NDArray,  # (n,), minimised
    is_integer: NDArray,  # (n,)
    lower: NDArray,  # (n,), may be infinite
    upper: NDArray,  # (n,)
    row_lower: NDArray,  # (m,), may be infinite
    row_upper: NDArray,  # (m,)
    row: NDArray,  # (e,), the constraint of each non-zero
    column: NDArray,  # (e,), its variable
    value: NDArray,  # (e,), its coefficient
    *,
    time_limit: float = 60.0,
) -> Label:
    """Solve to optimality, or to the proof that there is nothing to find."""
    model = Model()
    model.hideOutput()
    model.setParam("limits/time", time_limit)
    variables = [
        model.addVar(
            vtype="I" if is_integer[j] else "C",
            lb=_or_none(lower[j]),
            ub=_or_none(upper[j]),
            obj=float(objective[j]),
        )
        for j in range(len(objective))
    ]
    for i in range(len(row_lower)):
        of_row = np.flatnonzero(row == i)
        if of_row.size == 0:
            if row_lower[i] > 0 or row_upper[i] < 0:  # 0 = 1: nothing SCIP need be asked
                return Label(feasible=False, bounded=True, value=np.nan)
            continue
        activity = quicksum(float(value[k]) * variables[column[k]] for k in of_row)
        if row_lower[i] == row_upper[i]:
            model.addCons(activity == float(row_lower[i]))
            continue
        if np.isfinite(row_upper[i]):
            model.addCons(activity <= float(row_upper[i]))
        if np.isfinite(row_lower[i]):
            model.addCons(activity >= float(row_lower[i]))
    model.optimize()
    status = model.getStatus()
    open_ended = bool(((objective != 0) & ~(np.isfinite(lower) & np.isfinite(upper))).any())
    # Without an objective SCIP can tell which; with an unbounded one its "infeasible" can be wrong.
    if status == "inforunbd" or (status == "infeasible" and open_ended):
        model.freeTransform()
        model.setObjective(0.0)
        model.optimize()
        status = "unbounded" if model.getStatus() == "optimal" else model.getStatus()
    if status == "optimal":
        return Label(feasible=True, bounded=True, value=model.getObjVal())
    if status == "infeasible":
        return Label(feasible=False, bounded=True, value=np.nan)
    if status == "unbounded":
        return Label(feasible=True, bounded=False, value=np.nan)
    raise WorkError(
        f"SCIP ended with '{status}' after {model.getSolvingTime():.0f} s: allow more time"
    )


def _or_none(bound: float) -> float | None:
    return float(bound) if np.isfinite(bound) else None
