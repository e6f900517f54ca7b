"""Strong branching as a teacher: scores for every candidate of the node SCIP is at.

The scores are those of SCIP's own rule `vanillafullstrong`; asking for them teaches the search
nothing. Even the simplex solver does not notice: the children are solved in a copy of the LP, where
SCIP's rule leaves another factorisation and other pricing weights behind, and with them another
vertex wherever a later LP has several optimal ones.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pyscipopt import SCIP_LPSOLSTAT, Model
from torch import Tensor

from solver_plugins.library import declare, pointer_to

_NO_ITERATION_LIMIT = 2**31 - 1
_OKAY, _LP_ERROR = 1, -6  # SCIP_RETCODE
_NUM_LP_PARAMETERS = 20  # SCIP_LPPARAM


def strong_branching_scores(model: Model, *, in_place: bool = False) -> Tensor:
    """Return the expert's scores (float64) of all LP candidates, in the order SCIP lists them.

    The order is that of `model.getLPBranchCands()`. As in SCIP, a failing LP or a reached limit
    ends the work early: the candidates not scored are -inf. With `in_place`, and where SCIP's
    functions cannot be found, the node's own LP is used as SCIP's rule does it: the node, its
    pseudocosts and its history stay the same, but later LPs may end in other vertices.
    """
    candidates, values, *_ = model.getLPBranchCands()
    scores = np.full(len(candidates), -math.inf)
    if candidates and model.getLPSolstat() == SCIP_LPSOLSTAT.OPTIMAL:
        bound = model.getLPObjVal()
        children = _children_in_place if in_place or _scip() is None else _children_in_a_copy
        for i, (down, up) in enumerate(children(model, candidates, values)):
            gains = [max(down, bound) - bound, max(up, bound) - bound]
            scores[i] = model.getBranchScoreMultiple(candidates[i], gains)
    return torch.from_numpy(scores)


def pseudocost_scores(model: Model) -> Tensor:
    """Return SCIP's pseudocost scores (float64) of all LP candidates, in SCIP's order."""
    candidates, values, *_ = model.getLPBranchCands()
    scores = [model.getVarPseudocostScore(c, v) for c, v in zip(candidates, values, strict=True)]
    return torch.tensor(scores, dtype=torch.float64)


def _children_in_place(
    model: Model, candidates: list[Any], values: list[float]
) -> Iterator[tuple[float, float]]:
    """Yield the bounds of both children, candidate by candidate, by SCIP's public function."""
    model.startStrongbranch()
    try:
        for candidate in candidates:
            down, up, *_, failed = model.getVarStrongbranch(
                candidate, _NO_ITERATION_LIMIT, idempotent=True
            )
            if failed:  # an LP error, or SCIP was asked to stop
                return
            yield down, up
    finally:
        model.endStrongbranch()


def _children_in_a_copy(
    model: Model, candidates: list[Any], values: list[float]
) -> Iterator[tuple[float, float]]:
    """Yield what `_children_in_place` would, from a copy of the LP."""
    scip = _scip()
    assert scip is not None
    pointer = ctypes.c_void_p(pointer_to(model))
    cutoff, pseudo = scip.SCIPgetCutoffbound(pointer), scip.SCIPgetPseudoObjval(pointer)
    bound, loose = scip.SCIPgetLPObjval(pointer), scip.SCIPgetLPLooseObjval(pointer)
    with _copied_lp(scip, pointer) as copy:
        for candidate, value in zip(candidates, values, strict=True):
            if scip.SCIPisStopped(pointer):
                return
            down, up = ctypes.c_double(bound - loose), ctypes.c_double(bound - loose)
            ignored = [ctypes.byref(ctypes.c_int()) for _ in range(3)]
            code = scip.SCIPlpiStrongbranchFrac(
                copy,
                candidate.getCol().getLPPos(),
                value,
                _NO_ITERATION_LIMIT,
                ctypes.byref(down),
                ctypes.byref(up),
                *ignored,
            )
            if code == _LP_ERROR:
                return
            _call(code)
            bounds = [min(down.value + loose, cutoff), min(up.value + loose, cutoff)]
            # SCIP also knows the objective of the child without any rows.
            objective = candidate.getObj()
            if not model.isZero(objective):
                side = int(objective >= 0)
                step = (
                    model.feasCeil(value) - candidate.getLbLocal()
                    if side
                    else model.feasFloor(value) - candidate.getUbLocal()
                )
                without_rows = pseudo + objective * step
                if without_rows > bound:
                    bounds[side] = max(bounds[side], without_rows)
            yield bounds[0], bounds[1]


@contextmanager
def _copied_lp(scip: ctypes.CDLL, pointer: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    """Copy the LP that SCIP has solved: matrix, bounds, settings and basis."""
    lp, copy, sense = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    columns, rows, nonzeros = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    _call(scip.SCIPgetLPI(pointer, ctypes.byref(lp)))
    _call(scip.SCIPlpiGetObjsen(lp, ctypes.byref(sense)))
    _call(scip.SCIPlpiGetNCols(lp, ctypes.byref(columns)))
    _call(scip.SCIPlpiGetNRows(lp, ctypes.byref(rows)))
    _call(scip.SCIPlpiGetNNonz(lp, ctypes.byref(nonzeros)))
    n, m = columns.value, rows.value
    objective, lower, upper, left, right, values = (
        np.empty(max(size, 1)) for size in (n, n, n, m, m, nonzeros.value)
    )
    starts, indices, column_status, row_status = (
        np.empty(max(size, 1), dtype=np.intc) for size in (n, nonzeros.value, n, m)
    )
    a = _address
    if n > 0:
        _call(
            scip.SCIPlpiGetCols(
                lp,
                *(0, n - 1, a(lower), a(upper)),
                *(ctypes.byref(nonzeros), a(starts), a(indices), a(values)),
            )
        )
        _call(scip.SCIPlpiGetObj(lp, 0, n - 1, a(objective)))
    if m > 0:
        _call(scip.SCIPlpiGetSides(lp, 0, m - 1, a(left), a(right)))
    _call(scip.SCIPlpiGetBase(lp, a(column_status), a(row_status)))
    _call(scip.SCIPlpiCreate(ctypes.byref(copy), None, b"copy", sense))
    try:
        _copy_settings(scip, lp, copy)
        _call(
            scip.SCIPlpiLoadColLP(
                copy,
                *(sense, n, a(objective), a(lower), a(upper), None),
                *(m, a(left), a(right), None),
                *(nonzeros, a(starts), a(indices), a(values)),
            )
        )
        _call(scip.SCIPlpiSetBase(copy, a(column_status), a(row_status)))
        _call(scip.SCIPlpiStartStrongbranch(copy))
        try:
            yield copy
        finally:
            _call(scip.SCIPlpiEndStrongbranch(copy))
    finally:
        scip.SCIPlpiFree(ctypes.byref(copy))


def _copy_settings(scip: ctypes.CDLL, lp: ctypes.c_void_p, copy: ctypes.c_void_p) -> None:
    """Copy tolerances, limits and all; each parameter is a whole number, a real, or unknown."""
    whole, real = ctypes.c_int(), ctypes.c_double()
    for parameter in range(_NUM_LP_PARAMETERS):
        if scip.SCIPlpiGetIntpar(lp, parameter, ctypes.byref(whole)) == _OKAY:
            scip.SCIPlpiSetIntpar(copy, parameter, whole)
        elif scip.SCIPlpiGetRealpar(lp, parameter, ctypes.byref(real)) == _OKAY:
            scip.SCIPlpiSetRealpar(copy, parameter, real)


def _address(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _call(code: int) -> None:
    if code != _OKAY:
        raise RuntimeError(f"SCIP cannot copy its LP (return code {code})")


@functools.cache
def _scip() -> ctypes.CDLL | None:
    """Return SCIP's C functions, or None where PySCIPOpt does not show them."""
    pointer, whole, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "SCIPgetCutoffbound": (real, [pointer]),
        "SCIPgetLPObjval": (real, [pointer]),
        "SCIPgetLPLooseObjval": (real, [pointer]),
        "SCIPgetPseudoObjval": (real, [pointer]),
        "SCIPisStopped": (ctypes.c_uint, [pointer]),
        "SCIPgetLPI": (whole, [pointer, pointer]),
        "SCIPlpiCreate": (whole, [pointer, pointer, ctypes.c_char_p, whole]),
        "SCIPlpiFree": (whole, [pointer]),
        "SCIPlpiGetObjsen": (whole, [pointer, pointer]),
        "SCIPlpiGetNCols": (whole, [pointer, pointer]),
        "SCIPlpiGetNRows": (whole, [pointer, pointer]),
        "SCIPlpiGetNNonz": (whole, [pointer, pointer]),
        "SCIPlpiGetCols": (whole, [pointer, whole, whole, *[pointer] * 6]),
        "SCIPlpiGetObj": (whole, [pointer, whole, whole, pointer]),
        "SCIPlpiGetSides": (whole, [pointer, whole, whole, pointer, pointer]),
        "SCIPlpiGetBase": (whole, [pointer] * 3),
        "SCIPlpiSetBase": (whole, [pointer] * 3),
        "SCIPlpiGetIntpar": (whole, [pointer, whole, pointer]),
        "SCIPlpiSetIntpar": (whole, [pointer, whole, whole]),
        "SCIPlpiGetRealpar": (whole, [pointer, whole, pointer]),
        "SCIPlpiSetRealpar": (whole, [pointer, whole, real]),
        "SCIPlpiLoadColLP": (
            whole,
            [pointer, whole, whole, *[pointer] * 4, whole, *[pointer] * 3, whole, *[pointer] * 3],
        ),
        "SCIPlpiStartStrongbranch": (whole, [pointer]),
        "SCIPlpiEndStrongbranch": (whole, [pointer]),
        "SCIPlpiStrongbranchFrac": (whole, [pointer, whole, real, whole, *[pointer] * 5]),
    }
    return declare(signatures)
