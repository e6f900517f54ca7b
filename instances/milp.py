"""A mixed-integer linear program as arrays: what a family generates, before any solver sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class ParameterError(ValueError):
    """A family cannot make an instance with these parameters."""


@dataclass(frozen=True)
class Milp:
    """Minimise (or maximise) objective @ x, left <= matrix @ x <= right, lower <= x <= upper."""

    name: str
    maximise: bool
    objective: Floats  # (n,)
    lower: Floats  # (n,)
    upper: Floats  # (n,), may be infinite
    binary: NDArray[np.bool_]  # (n,), the others are continuous
    matrix: csr_array  # (m, n)
    left: Floats  # (m,), may be -infinite
    right: Floats  # (m,), may be infinite
    variable_names: Sequence[str]  # n
    row_names: Sequence[str]  # m


def binary_program(
    name: str,
    maximise: bool,
    objective: Floats,
    matrix: csr_array,
    left: Floats | float,
    right: Floats | float,
    variable_names: Sequence[str],
    row_names: Sequence[str],
) -> Milp:
    """Return a program whose variables are all binary; one number may stand for all sides."""
    m, n = matrix.shape
    return Milp(
        name=name,
        maximise=maximise,
        objective=np.asarray(objective, dtype=np.float64),
        lower=np.zeros(n),
        upper=np.ones(n),
        binary=np.ones(n, dtype=bool),
        matrix=matrix,
        left=np.broadcast_to(np.asarray(left, dtype=np.float64), m),
        right=np.broadcast_to(np.asarray(right, dtype=np.float64), m),
        variable_names=variable_names,
        row_names=row_names,
    )


def stable_decimals(values: Floats) -> Floats:
    """Return the values to six decimals.

    The last bit of a sum or a power may differ between processors and libraries; six decimals do
    not, and so neither do the bytes of a file.
    """
    return np.round(values, 6) + 0.0  # no negative zeros
