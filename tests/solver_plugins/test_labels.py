"""What SCIP proves of tiny instances, checked against what can be seen or counted by hand."""

import itertools

import numpy as np
import pytest

from instances.foldable import foldable_milps
from instances.random_milp import random_milps
from pipelines.instance_level.data import label
from solver_plugins.labels import solve_label

INF = np.inf


def solve(c, integer, lower, upper, A, row_lower, row_upper):
    A = np.array(A, dtype=float).reshape(len(row_lower), len(c))
    row, column = np.nonzero(A)
    arrays = (np.array(x, dtype=float) for x in (lower, upper, row_lower, row_upper))
    return solve_label(np.array(c), np.array(integer), *arrays, row, column, A[row, column])


def test_an_optimum_is_found() -> None:
    label = solve([-1.0, -2.0], [1, 0], [0, 0], [3.5, 3.5], [[1, 1]], [-INF], [4.25])
    assert label.feasible and label.bounded
    assert label.value == pytest.approx(-7.5)  # x = (1, 3.25)


def test_integrality_decides() -> None:
    assert not solve([0.0], [1], [0.3], [0.7], [[1]], [-INF], [1]).feasible
    assert solve([0.0], [0], [0.3], [0.7], [[1]], [-INF], [1]).feasible


def test_both_sides_of_a_row_count() -> None:
    label = solve([1.0], [0], [-5], [5], [[2]], [3], [4])
    assert label.value == pytest.approx(1.5)


def test_a_row_without_entries_can_still_be_wrong() -> None:
    assert not solve([1.0], [0], [0], [1], [[0]], [1], [1]).feasible
    assert solve([1.0], [0], [0], [1], [[0]], [-INF], [1]).feasible


def test_falling_without_end_is_feasible_but_not_bounded() -> None:
    label = solve([-1.0], [1], [0], [INF], [[1]], [1], [INF])
    assert label.feasible and not label.bounded and np.isnan(label.value)


def test_infeasible_is_not_taken_for_unbounded() -> None:
    label = solve([-1.0, 0.0], [0, 1], [0, 0], [INF, INF], [[0, 2]], [1], [1])
    assert not label.feasible and np.isnan(label.value)


def test_the_hexagon_is_feasible_and_the_triangles_are_not() -> None:
    milps = foldable_milps(range(6), seed=0)
    assert [label(milps, k).feasible for k in range(6)] == [True, False] * 3


def test_scip_agrees_with_counting() -> None:
    """Every point of small integer boxes is tried."""
    milps = random_milps(range(40), seed=5, variables=3, constraints=2, nonzeros=4)
    milps.is_integer[:] = True
    milps.lower[:], milps.upper[:] = np.clip(milps.lower, -4, 4), np.clip(milps.upper, -4, 4)
    milps.sense[milps.sense == 1] = 0  # equalities with random numbers have no integer solution
    feasible = []
    for k in range(len(milps)):
        A = np.zeros((2, 3))
        A[milps.row[k], milps.column[k]] = milps.value[k]
        values = []
        ranges = [
            range(int(np.ceil(lo)), int(np.floor(up)) + 1)
            for lo, up in zip(milps.lower[k], milps.upper[k], strict=True)
        ]
        for x in itertools.product(*ranges):
            slack = (A @ x - milps.rhs[k]) * np.where(milps.sense[k] == 0, -1, 1)
            if (slack >= 0).all():
                values.append(milps.objective[k] @ x)
        found = label(milps, k)
        assert found.feasible == bool(values)
        if values:
            assert found.value == pytest.approx(min(values), abs=1e-6)
        feasible.append(found.feasible)
    assert 5 < sum(feasible) < 35


def test_a_ray_does_not_make_an_instance_infeasible() -> None:
    """SCIP 10.0 calls this one infeasible, although (0, 1, 1, 0, 0, 1) satisfies its equalities."""
    rows = [[21, 8, 23, 10, 29, 29, 0, 0], [11, 18, 23, 20, 19, 8, 0, 0], [1, 1, 1, 1, 1, 1, 1, -1]]
    label = solve(
        [0.0] * 6 + [-1.0, 0.0], [1] * 6 + [0, 0], [0] * 8, [1] * 6 + [INF, INF],
        rows, [60, 49, -INF], [60, 49, 3],
    )  # fmt: skip
    assert label.feasible and not label.bounded
