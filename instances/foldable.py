"""Foldable pairs after Chen et al. (2023): alike to colour refinement, one feasible, one not.

Both ask that neighbours on cycles of binary variables differ: on one even cycle this can be done,
on two odd cycles it cannot. The other variables are continuous and in no constraint.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from instances import ParameterError
from instances.stack import EQUAL, Milps, in_row_order, stack


def foldable_milps(
    indices: range, *, seed: int, variables: int = 20, constraints: int = 6
) -> Milps:
    """Make the instances with these numbers: 2p is feasible, 2p + 1 its infeasible twin."""
    check_sizes(variables, constraints)
    return stack([_one(seed, index, variables, constraints) for index in indices])


def check_sizes(variables: int, constraints: int, nonzeros: int | None = None) -> None:
    """Refuse sizes that have no such pair."""
    if constraints < 6 or constraints % 4 != 2:
        raise ParameterError(
            "a foldable pair is one even cycle and two odd ones of half its length: "
            f"6, 10, 14, … constraints, not {constraints}"
        )
    if variables < constraints:
        raise ParameterError(
            f"a cycle of {constraints} constraints needs as many variables, not {variables}"
        )
    if nonzeros not in (None, 2 * constraints):
        raise ParameterError(
            f"a foldable instance of {constraints} constraints has {2 * constraints} non-zeros, "
            f"not {nonzeros}: leave the number out"
        )


def _one(seed: int, index: int, n: int, m: int) -> Milps:
    pair, twin = divmod(index, 2)
    rng = np.random.default_rng([seed, pair])  # the same for both twins
    ends = rng.normal(0, 10, (2, n))
    lower, upper = ends.min(axis=0), ends.max(axis=0)
    cycle = rng.choice(n, m, replace=False)
    lower[cycle], upper[cycle] = 0, 1
    is_binary = np.zeros(n, dtype=bool)
    is_binary[cycle] = True

    after = _next_on_one_cycle(m) if twin == 0 else _next_on_two_cycles(m)
    row = np.repeat(np.arange(m), 2)[None]
    column = np.stack([cycle, cycle[after]], axis=1).reshape(1, -1)
    return Milps(
        np.zeros((1, n)),
        is_binary[None],
        lower[None],
        upper[None],
        np.ones((1, m)),
        np.full((1, m), EQUAL, dtype=np.int8),
        *in_row_order(row, column, np.ones((1, 2 * m)), n),
    )


def _next_on_one_cycle(m: int) -> NDArray[np.int64]:
    return (np.arange(m) + 1) % m


def _next_on_two_cycles(m: int) -> NDArray[np.int64]:
    half = _next_on_one_cycle(m // 2)
    return np.concatenate([half, half + m // 2])
