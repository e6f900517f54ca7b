"""Writing a program to a file, through SCIP's own writer.

SCIP is filled through its C functions, found in the library that PySCIPOpt has loaded; where they
are not found, through PySCIPOpt's expressions, several times slower. Both give the same bytes.
"""

from __future__ import annotations

import ctypes
import gzip
import os
from functools import cache
from pathlib import Path

import numpy as np
import pyscipopt
from pyscipopt.scip import Expr, ExprCons, Term

from instances.milp import Milp

FORMATS = ("lp", "mps", "mps.gz")
_OKAY = 1  # SCIP_OKAY
_BINARY, _CONTINUOUS = 0, 3  # SCIP_VARTYPE


def scip_model(milp: Milp) -> pyscipopt.Model:
    """Return the program as a SCIP model."""
    library = _scip_library()
    return _fill_plainly(milp) if library is None else _fill_fast(milp, library)


def write(milp: Milp, path: Path) -> None:
    """Write the program to a file; the name appears only once the file is complete."""
    plain = path.with_name(f".{os.getpid()}-{path.name.removesuffix('.gz')}")
    try:
        scip_model(milp).writeProblem(str(plain), verbose=False)
        if path.suffix == ".gz":
            plain.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
        os.replace(plain, path)
    finally:
        plain.unlink(missing_ok=True)


def _fill_plainly(milp: Milp) -> pyscipopt.Model:
    model = _empty_model(milp)
    terms = []
    for j, name in enumerate(milp.variable_names):
        upper = milp.upper[j] if np.isfinite(milp.upper[j]) else None
        variable = model.addVar(
            name, "B" if milp.binary[j] else "C", milp.lower[j], upper, milp.objective[j]
        )
        terms.append(Term(variable))
    matrix = milp.matrix
    for i, name in enumerate(milp.row_names):
        entries = slice(matrix.indptr[i], matrix.indptr[i + 1])
        columns, values = matrix.indices[entries], matrix.data[entries]
        row = Expr({terms[j]: value for j, value in zip(columns, values, strict=True)})
        left = milp.left[i] if np.isfinite(milp.left[i]) else None
        right = milp.right[i] if np.isfinite(milp.right[i]) else None
        model.addCons(ExprCons(row, lhs=left, rhs=right), name=name)
    return model


def _fill_fast(milp: Milp, scip: ctypes.CDLL) -> pyscipopt.Model:
    model = _empty_model(milp)
    infinity = model.infinity()
    pointer = ctypes.c_void_p(_pointer_of(model))
    n = len(milp.variable_names)
    variables = np.zeros(n, dtype=np.uintp)
    slot = variables.ctypes.data
    kinds = np.where(milp.binary, _BINARY, _CONTINUOUS).tolist()
    lower, upper = _bounded(milp.lower, infinity), _bounded(milp.upper, infinity)
    objective = milp.objective.tolist()
    for j, name in enumerate(milp.variable_names):
        at = slot + 8 * j
        _call(
            scip.SCIPcreateVarBasic(
                pointer, at, name.encode(), lower[j], upper[j], objective[j], kinds[j]
            )
        )
        _call(scip.SCIPaddVar(pointer, int(variables[j])))
    columns = np.ascontiguousarray(variables[milp.matrix.indices])
    values = np.ascontiguousarray(milp.matrix.data, dtype=np.float64)
    starts = milp.matrix.indptr.tolist()
    left, right = _bounded(milp.left, infinity), _bounded(milp.right, infinity)
    constraint = ctypes.c_void_p()
    at = ctypes.addressof(constraint)
    columns_at, values_at = columns.ctypes.data, values.ctypes.data
    for i, name in enumerate(milp.row_names):
        start, end = starts[i], starts[i + 1]
        _call(
            scip.SCIPcreateConsBasicLinear(
                pointer, at, name.encode(), end - start, columns_at + 8 * start,
                values_at + 8 * start, left[i], right[i],
            )
        )  # fmt: skip
        _call(scip.SCIPaddCons(pointer, constraint))
        _call(scip.SCIPreleaseCons(pointer, at))
    for j in range(n):  # the problem holds them now
        _call(scip.SCIPreleaseVar(pointer, slot + 8 * j))
    return model


def _empty_model(milp: Milp) -> pyscipopt.Model:
    model = pyscipopt.Model(milp.name)
    if milp.maximise:
        model.setMaximize()
    return model


def _bounded(values: np.ndarray, infinity: float) -> list[float]:
    return np.clip(values, -infinity, infinity).tolist()


def _call(code: int) -> None:
    if code != _OKAY:
        raise RuntimeError(f"SCIP refused part of an instance (return code {code})")


def _pointer_of(model: pyscipopt.Model) -> int:
    capsule = model.to_ptr(False)
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get_pointer(capsule, b"scip"))


@cache
def _scip_library() -> ctypes.CDLL | None:
    """Return SCIP's C functions, or None where PySCIPOpt does not show them."""
    pointer, text, real, whole = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_double, ctypes.c_int
    signatures = {
        "SCIPcreateVarBasic": [pointer, pointer, text, real, real, real, whole],
        "SCIPaddVar": [pointer, pointer],
        "SCIPreleaseVar": [pointer, pointer],
        "SCIPcreateConsBasicLinear": [pointer, pointer, text, whole, pointer, pointer, real, real],
        "SCIPaddCons": [pointer, pointer],
        "SCIPreleaseCons": [pointer, pointer],
    }
    try:
        library = ctypes.CDLL(pyscipopt.scip.__file__)
        for name, arguments in signatures.items():
            getattr(library, name).argtypes = arguments
    except (OSError, AttributeError):
        return None
    return library
