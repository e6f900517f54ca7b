"""An instance as arrays: the one place that reads a file into objective, bounds, types and matrix.

SCIP reads the file, so every format it knows works; the numbers are then taken from it through its
C functions, because a Python object for each of a million non-zeros takes longer than reading.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyscipopt
from scipy.sparse import csr_matrix

from learn2branch.errors import InputError, WorkError
from solver_plugins.library import declare, pointer_to
from solver_plugins.reading import read_model

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

SENSES = ("<=", ">=", "==")  # what the numbers of `MilpArrays.senses` mean
_BEYOND = 1e20  # SCIP's infinity
_INTEGER_TYPES = (0, 1)  # SCIP_VARTYPE_BINARY, SCIP_VARTYPE_INTEGER
_NEGATED = 6  # SCIP_VARSTATUS_NEGATED


@dataclass(frozen=True)
class MilpArrays:
    """min or max `objective @ x + offset` with `lhs <= matrix @ x <= rhs`, `lower <= x <= upper`.

    Variables are in the order of `Model.getVars()` for the file as read; missing sides and bounds
    are infinite.
    """

    objective: Floats  # (n,), in the sense of the file
    offset: float
    maximise: bool
    lower: Floats  # (n,)
    upper: Floats  # (n,)
    is_integer: Bools  # (n,), binaries included
    matrix: csr_matrix  # (m, n), sorted indices, no stored zeros, no duplicates
    lhs: Floats  # (m,)
    rhs: Floats  # (m,)
    names: tuple[str, ...]  # of the variables

    @property
    def num_variables(self) -> int:
        """Columns."""
        return len(self.objective)

    @property
    def num_constraints(self) -> int:
        """Rows."""
        return len(self.rhs)

    @property
    def is_binary(self) -> Bools:
        """Integer variables with bounds within 0 and 1, however the file declares them; (n,)."""
        return self.is_integer & (self.lower >= 0) & (self.upper <= 1)

    @property
    def senses(self) -> npt.NDArray[np.int8]:
        """Positions in `SENSES`; a row with two different finite sides counts as `<=`; (m,)."""
        return np.where(self.lhs == self.rhs, 2, np.where(np.isinf(self.rhs), 1, 0)).astype(np.int8)

    @property
    def sides(self) -> Floats:
        """The number on the right of the sense; (m,)."""
        return np.where(self.senses == 1, self.lhs, self.rhs)

    def objective_of(self, x: Floats) -> float:
        """Evaluate the objective, offset included."""
        return float(self.objective @ x + self.offset)

    def better(self, one: float, other: float) -> bool:
        """Tell whether one objective value is strictly better than another."""
        return one > other if self.maximise else one < other

    @property
    def worst(self) -> float:
        """The objective value that any solution improves on."""
        return -np.inf if self.maximise else np.inf

    def violation(self, x: Floats) -> float:
        """Return by how much a point breaks its worst row, bound or integrality; 0 if feasible.

        Rows are measured relative to the larger of 1, their side and their activity, as SCIP does.
        """
        if len(x) != self.num_variables or not np.isfinite(x).all():
            return np.inf
        activity = self.matrix @ x
        worst = 0.0
        for value, low, high in ((activity, self.lhs, self.rhs), (x, self.lower, self.upper)):
            for excess, side in ((low - value, low), (value - high, high)):
                bounded = np.isfinite(side)
                scale = np.maximum(1.0, np.maximum(np.abs(side[bounded]), np.abs(value[bounded])))
                worst = max(worst, float(np.max(excess[bounded] / scale, initial=0.0)))
        whole = x[self.is_integer]
        return max(worst, float(np.max(np.abs(whole - np.round(whole)), initial=0.0)))

    def is_feasible(self, x: Floats, tolerance: float = 1e-6) -> bool:
        """Check a point against every row, bound and integrality."""
        return self.violation(x) <= tolerance * (1 + 1e-6)


def read_arrays(path: str | Path) -> MilpArrays:
    """Read an instance file into arrays: about two seconds for a million non-zeros."""
    try:
        return arrays_of(read_model(path))
    except _NotLinear as error:
        raise InputError(f"{path} is not a mixed-integer linear program: {error}") from error


class _NotLinear(InputError):
    pass


def arrays_of(model: pyscipopt.Model) -> MilpArrays:
    """Return the original problem of a model, whatever stage its solution is at."""
    scip, lib = pointer_to(model), library()
    num_variables, num_rows = lib.SCIPgetNOrigVars(scip), lib.SCIPgetNOrigConss(scip)
    variables = original_variables(model)

    def of_each(function: Any, dtype: Any = np.float64) -> npt.NDArray[Any]:
        return np.fromiter((function(v) for v in variables.tolist()), dtype, num_variables)

    lengths = np.empty(num_rows, np.int64)
    lhs, rhs = np.empty(num_rows), np.empty(num_rows)
    known, length = ctypes.c_uint(), ctypes.c_int()
    constraints = lib.SCIPgetOrigConss(scip)[:num_rows] if num_rows else []
    for row, constraint in enumerate(constraints):
        lib.SCIPgetConsNVars(scip, constraint, length, known)
        lengths[row] = length.value if known.value else 0
        lhs[row] = lib.SCIPconsGetLhs(scip, constraint, known)
        if not known.value:
            handler = lib.SCIPconshdlrGetName(lib.SCIPconsGetHdlr(constraint)).decode()
            name = lib.SCIPconsGetName(constraint).decode()
            raise _NotLinear(f"constraint {name} is of kind '{handler}'")
        rhs[row] = lib.SCIPconsGetRhs(scip, constraint, known)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    members, values = np.empty(indptr[-1], np.uintp), np.empty(indptr[-1])
    first_member, first_value = members.ctypes.data, values.ctypes.data
    for constraint, start, size in zip(
        constraints, (8 * indptr[:-1]).tolist(), lengths.tolist(), strict=True
    ):
        lib.SCIPgetConsVars(scip, constraint, first_member + start, size, known)
        lib.SCIPgetConsVals(scip, constraint, first_value + start, size, known)

    order = np.argsort(variables)
    sorted_variables = variables[order]
    _replace_negated(members, values, lhs, rhs, indptr, sorted_variables)
    indices = order[np.searchsorted(sorted_variables, members)]
    matrix = csr_matrix((values, indices, indptr), shape=(num_rows, num_variables))
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    types = of_each(lib.SCIPvarGetType, np.int64)
    return MilpArrays(
        objective=of_each(lib.SCIPvarGetObj),
        offset=lib.SCIPgetOrigObjoffset(scip),
        maximise=lib.SCIPgetObjsense(scip) < 0,
        lower=_with_infinities(of_each(lib.SCIPvarGetLbOriginal)),
        upper=_with_infinities(of_each(lib.SCIPvarGetUbOriginal)),
        is_integer=np.isin(types, _INTEGER_TYPES),
        matrix=matrix,
        lhs=_with_infinities(lhs),
        rhs=_with_infinities(rhs),
        names=tuple(lib.SCIPvarGetName(v).decode() for v in variables.tolist()),
    )


def original_variables(model: pyscipopt.Model) -> npt.NDArray[np.uintp]:
    """Return the addresses of the original variables, in the order of the arrays; (n,)."""
    scip, lib = pointer_to(model), library()
    count = lib.SCIPgetNOrigVars(scip)
    return np.array(lib.SCIPgetOrigVars(scip)[:count] if count else [], np.uintp)


def best_values(model: pyscipopt.Model, variables: npt.NDArray[np.uintp]) -> Floats:
    """Return the values of variables (by address) in the best solution; (n,)."""
    return _values(model, library().SCIPgetBestSol(pointer_to(model)), variables)


def all_values(model: pyscipopt.Model, variables: npt.NDArray[np.uintp]) -> list[Floats]:
    """Return the values of variables (by address) in every stored solution, best first."""
    scip, lib = pointer_to(model), library()
    count = lib.SCIPgetNSols(scip)
    solutions = lib.SCIPgetSols(scip)[:count] if count else []
    return [_values(model, solution, variables) for solution in solutions]


def add_solution(model: pyscipopt.Model, variables: npt.NDArray[np.uintp], values: Floats) -> None:
    """Give SCIP a solution of the original problem, before it solves; it checks it by itself."""
    scip, lib = pointer_to(model), library()
    solution, stored = ctypes.c_void_p(), ctypes.c_uint()
    values = np.ascontiguousarray(values, np.float64)
    lib.SCIPcreateOrigSol(scip, ctypes.byref(solution), None)
    lib.SCIPsetSolVals(scip, solution, len(variables), variables.ctypes.data, values.ctypes.data)
    lib.SCIPaddSolFree(scip, ctypes.byref(solution), stored)


def _values(model: pyscipopt.Model, solution: int, variables: npt.NDArray[np.uintp]) -> Floats:
    values = np.empty(len(variables))
    library().SCIPgetSolVals(
        pointer_to(model), solution, len(variables), variables.ctypes.data, values.ctypes.data
    )
    return values


def _replace_negated(
    members: npt.NDArray[np.uintp],
    values: Floats,
    lhs: Floats,
    rhs: Floats,
    indptr: npt.NDArray[np.int64],
    sorted_variables: npt.NDArray[np.uintp],
) -> None:
    """Write a (c - x) as constant and -a x, in place: .cip files may hold negated variables."""
    if not len(members):
        return
    lib = library()
    found = np.searchsorted(sorted_variables, members)
    found[found == len(sorted_variables)] = 0
    strangers = np.flatnonzero(sorted_variables[found] != members)
    for position in strangers:
        variable = int(members[position])
        if lib.SCIPvarGetStatus(variable) != _NEGATED:
            name = lib.SCIPvarGetName(variable).decode()
            raise _NotLinear(f"variable {name} is not one of the original problem")
        constant = values[position] * lib.SCIPvarGetNegationConstant(variable)
        row = np.searchsorted(indptr, position, side="right") - 1
        lhs[row] -= constant
        rhs[row] -= constant
        members[position] = lib.SCIPvarGetNegationVar(variable)
        values[position] = -values[position]


def _with_infinities(values: Floats) -> Floats:
    return np.where(np.abs(values) >= _BEYOND, np.copysign(np.inf, values), values)


@cache
def library() -> ctypes.CDLL:
    """Return the functions of SCIP that this module calls."""
    pointer, real, integer = ctypes.c_void_p, ctypes.c_double, ctypes.c_int
    flag, count = ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(integer)
    addresses = ctypes.POINTER(ctypes.c_size_t)
    lib = declare(
        {
            "SCIPgetNOrigVars": (integer, [pointer]),
            "SCIPgetOrigVars": (addresses, [pointer]),
            "SCIPgetNOrigConss": (integer, [pointer]),
            "SCIPgetOrigConss": (addresses, [pointer]),
            "SCIPgetObjsense": (integer, [pointer]),
            "SCIPgetOrigObjoffset": (real, [pointer]),
            "SCIPvarGetObj": (real, [pointer]),
            "SCIPvarGetLbOriginal": (real, [pointer]),
            "SCIPvarGetUbOriginal": (real, [pointer]),
            "SCIPvarGetType": (integer, [pointer]),
            "SCIPvarGetName": (ctypes.c_char_p, [pointer]),
            "SCIPvarGetStatus": (integer, [pointer]),
            "SCIPvarGetNegationVar": (pointer, [pointer]),
            "SCIPvarGetNegationConstant": (real, [pointer]),
            "SCIPconsGetName": (ctypes.c_char_p, [pointer]),
            "SCIPconsGetHdlr": (pointer, [pointer]),
            "SCIPconshdlrGetName": (ctypes.c_char_p, [pointer]),
            "SCIPconsGetLhs": (real, [pointer, pointer, flag]),
            "SCIPconsGetRhs": (real, [pointer, pointer, flag]),
            "SCIPgetConsNVars": (integer, [pointer, pointer, count, flag]),
            "SCIPgetConsVars": (integer, [pointer, pointer, pointer, integer, flag]),
            "SCIPgetConsVals": (integer, [pointer, pointer, pointer, integer, flag]),
            "SCIPgetSolVals": (integer, [pointer, pointer, integer, pointer, pointer]),
            "SCIPgetBestSol": (pointer, [pointer]),
            "SCIPgetNSols": (integer, [pointer]),
            "SCIPgetSols": (addresses, [pointer]),
            "SCIPcreateOrigSol": (integer, [pointer, pointer, pointer]),
            "SCIPsetSolVals": (integer, [pointer, pointer, integer, pointer, pointer]),
            "SCIPaddSolFree": (integer, [pointer, pointer, flag]),
        }
    )
    if lib is None:
        raise WorkError("this pyscipopt does not show SCIP's functions: install 6.x, with SCIP 10")
    return lib
