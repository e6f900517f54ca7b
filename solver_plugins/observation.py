"""The state of the LP at the node SCIP is working on, as a `BipartiteGraph`.

The definitions are Ecole's `NodeBipartite`, column for column (`docs/observation.md`). The plain
path below says in PySCIPOpt calls what every number is, and always works. The fast path, in C over
SCIP's own functions, is taken where it was compiled and SCIP is a version it was checked with.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import pyscipopt.scip
import torch
from pyscipopt import SCIP_LPSOLSTAT, SCIP_STAGE, Model
from torch import Tensor

from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from solver_plugins.library import CHECKED_MAJOR_VERSIONS

try:
    import solver_plugins._scip as _scip
except ImportError:  # no compiler at installation
    _scip = None

_AGE_OFFSET = 5.0  # Ecole's; keeps the first nodes' ages from dominating
_TYPES = ("BINARY", "INTEGER", "IMPLINT", "CONTINUOUS")
_BASIS = ("lower", "basic", "upper", "zero")


def observe(model: Model) -> BipartiteGraph:
    """Return the LP state of the current node; to be called from inside a branching rule.

    Variables come in the order of `model.getVars(transformed=True)`, so a row of
    `variable_features` is a variable's problem index; constraints are the finite sides of the LP
    rows, the left side first.
    """
    return Observer().observe(model)


class Observer:
    """Observes one solve, node after node, and keeps what does not change in between.

    While the LP matrix stays the same, every state carries the identical `edge_index` and
    `edge_values` tensors, so whoever caches by them may compare with `is`. `fast=False` keeps to
    the plain path.
    """

    def __init__(self, *, fast: bool = True) -> None:
        self._fast = _scip.Observer() if fast and has_fast_path() else None
        self._edge_index = torch.empty(2, 0, dtype=torch.int64)
        self._edge_values = torch.empty(0)

    def observe(self, model: Model) -> BipartiteGraph:
        """Return the LP state of the current node."""
        _check_there_is_a_state(model)
        if self._fast is None:
            graph = plain_observe(model)
            same_index = torch.equal(graph.edge_index, self._edge_index)
            if not (same_index and torch.equal(graph.edge_values, self._edge_values)):
                self._edge_index, self._edge_values = graph.edge_index, graph.edge_values
            variables, constraints = graph.variable_features, graph.constraint_features
        else:
            of_variables, of_constraints, edges = self._fast.observe(model.to_ptr(False))
            variables = _tensor(of_variables, torch.float32).view(-1, len(STATE.variable))
            constraints = _tensor(of_constraints, torch.float32).view(-1, len(STATE.constraint))
            if edges is not None:
                self._edge_index = _tensor(edges[0], torch.int64).view(2, -1)
                self._edge_values = _tensor(edges[1], torch.float32)
        return BipartiteGraph(constraints, self._edge_index, self._edge_values, variables)

    def candidates(self, model: Model) -> Tensor:
        """Return the LP branching candidates, in SCIP's order, as rows of `variable_features`."""
        if self._fast is None:
            return problem_indices(model, model.getLPBranchCands()[0])
        return _tensor(_scip.candidates(model.to_ptr(False))[0], torch.int64)


@functools.cache
def has_fast_path() -> bool:
    """Tell whether states are observed in C here: compiled, and a SCIP it was checked with."""
    if _scip is None:
        return False
    try:
        return _scip.load(pyscipopt.scip.__file__) in CHECKED_MAJOR_VERSIONS
    except OSError:  # SCIP's functions cannot be found by name
        return False


def _tensor(buffer: bytearray, dtype: torch.dtype) -> Tensor:
    return torch.frombuffer(buffer, dtype=dtype) if buffer else torch.empty(0, dtype=dtype)


def problem_indices(model: Model, variables: Sequence[Any]) -> Tensor:
    """Return where variables stand in `model.getVars(transformed=True)`."""
    position = {variable.ptr(): i for i, variable in enumerate(model.getVars(transformed=True))}
    return torch.tensor([position[variable.ptr()] for variable in variables], dtype=torch.int64)


def _check_there_is_a_state(model: Model) -> None:
    if model.getStage() != SCIP_STAGE.SOLVING or model.getLPSolstat() != SCIP_LPSOLSTAT.OPTIMAL:
        raise InputError(
            "there is no LP state to observe: call this at a node whose LP is solved to "
            "optimality, for instance in branchexeclp of a branching rule"
        )


def plain_observe(model: Model) -> BipartiteGraph:
    """Observe by PySCIPOpt calls alone: slow, works everywhere, and defines the truth."""
    variables = model.getVars(transformed=True)
    objective_norm = math.sqrt(
        sum(variable.getObj() ** 2 for variable in variables if variable.isInLP())
    )
    constraint_features, edge_index, edge_values = _plain_rows(model, variables, objective_norm)
    columns = [_variable_row(model, variable, objective_norm or 1.0) for variable in variables]
    variable_features = _matrix(columns, STATE.variable)
    return BipartiteGraph(constraint_features, edge_index, edge_values, variable_features)


def _variable_row(model: Model, variable: Any, objective_norm: float) -> list[float]:
    kind = "IMPLINT" if variable.isImpliedIntegral() else variable.vtype()
    in_lp, value = variable.isInLP(), variable.getLPSol()
    lower, upper = variable.getLbLocal(), variable.getUbLocal()
    reduced_cost, age, basis = 0.0, 0, "zero"
    if in_lp:
        column = variable.getCol()
        lower, upper = column.getLb(), column.getUb()
        age, basis = column.getAge(), column.getBasisStatus()
        # PySCIPOpt reports it for the user's sense; the state is that of the minimisation.
        sign = -1.0 if model.getObjectiveSense() == "maximize" else 1.0
        reduced_cost = sign * model.getVarRedcost(variable)
    has_lower, has_upper = (not model.isInfinity(abs(bound)) for bound in (lower, upper))
    incumbent = model.getBestSol()
    return [
        variable.getObj() / objective_norm,
        *(float(kind == t) for t in _TYPES),
        float(has_lower),
        float(has_upper),
        reduced_cost / objective_norm,
        value,
        0.0 if kind == "CONTINUOUS" else model.feasFrac(value),
        float(has_lower and model.isEQ(value, lower)),
        float(has_upper and model.isEQ(value, upper)),
        age / (model.getNLPs() + _AGE_OFFSET),
        0.0 if incumbent is None else model.getSolVal(incumbent, variable),
        0.0 if incumbent is None else variable.getAvgSol(),
        *(float(basis == b) for b in _BASIS),
    ]


def _plain_rows(
    model: Model, variables: Sequence[Any], objective_norm: float
) -> tuple[Tensor, Tensor, Tensor]:
    position = {variable.ptr(): i for i, variable in enumerate(variables)}
    age_scale = model.getNLPs() + _AGE_OFFSET
    features: list[list[float]] = []
    of_constraint: list[int] = []
    of_variable: list[int] = []
    values: list[float] = []
    for row in model.getLPRowsData():
        norm = row.getNorm() if row.getNorm() > 0 else 1.0
        columns, coefficients = row.getCols(), row.getVals()
        product = row.getNorm() * objective_norm
        cosine = 0.0
        if model.isPositive(product):
            cosine = sum(
                coefficient * column.getObjCoeff()
                for column, coefficient in zip(columns, coefficients, strict=True)
            )
            cosine /= product
        in_lp = row.getNLPNonz()  # those come first
        owners = [position[column.getVar().ptr()] for column in columns[:in_lp]]
        for sign, side in ((-1.0, row.getLhs()), (1.0, row.getRhs())):
            if model.isInfinity(abs(side)):
                continue
            of_constraint += [len(features)] * in_lp
            of_variable += owners
            values += [sign * coefficient / norm for coefficient in coefficients[:in_lp]]
            features.append(
                [
                    sign * (side - row.getConstant()) / norm,
                    sign * cosine,
                    float(model.isEQ(model.getRowLPActivity(row), side)),
                    sign * row.getDualsol() / (norm * (objective_norm or 1.0)),
                    row.getAge() / age_scale,
                ]
            )
    return (
        _matrix(features, STATE.constraint),
        torch.tensor([of_constraint, of_variable], dtype=torch.int64),
        torch.tensor(values, dtype=torch.float32),
    )


def _matrix(rows: list[list[float]], columns: Sequence[str]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).reshape(len(rows), len(columns))
