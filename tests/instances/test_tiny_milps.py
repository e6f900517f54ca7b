"""The two sets of Chen et al.: random MILPs, and foldable pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import ParameterError
from instances.foldable import foldable_milps
from instances.random_milp import random_milps
from instances.stack import EQUAL, Milps


def matrices(milps: Milps) -> np.ndarray:
    A = np.zeros((len(milps), milps.constraints, milps.variables))
    A[np.arange(len(milps))[:, None], milps.row, milps.column] = milps.value
    return A


def colours(milps: Milps, index: int) -> list:
    """Refine colours from the features (Weisfeiler and Leman) until they are stable."""
    A = matrices(milps)[index]
    columns = (milps.objective, milps.is_integer, milps.lower, milps.upper)
    variable = [hash(features) for features in zip(*(c[index] for c in columns), strict=True)]
    constraint = [hash(f) for f in zip(milps.rhs[index], milps.sense[index], strict=True)]

    def refined(own: list, other: list, coefficients: np.ndarray) -> list:
        return [
            hash((colour, *sorted((a, c) for a, c in zip(row, other, strict=True) if a)))
            for colour, row in zip(own, coefficients, strict=True)
        ]

    for _ in range(milps.variables + milps.constraints):
        variable, constraint = refined(variable, constraint, A.T), refined(constraint, variable, A)
    return [sorted(variable), sorted(constraint)]


def test_a_random_milp_has_the_sizes_of_the_paper() -> None:
    milps = random_milps(range(500), seed=0)
    assert (milps.variables, milps.constraints, milps.nonzeros) == (20, 6, 60)
    assert (matrices(milps) != 0).sum(axis=(1, 2)).tolist() == [60] * 500
    assert (milps.lower <= milps.upper).all()


def test_random_milps_follow_the_distributions_of_the_paper() -> None:
    milps = random_milps(range(2000), seed=1)
    assert milps.objective.std() == pytest.approx(0.01, rel=0.02)
    ends = np.concatenate([milps.lower, milps.upper])
    assert ends.mean() == pytest.approx(0, abs=0.15)
    assert ends.std() == pytest.approx(10, rel=0.02)
    assert milps.is_integer.mean() == pytest.approx(0.5, abs=0.01)
    assert milps.rhs.std() == pytest.approx(1, rel=0.03)
    assert milps.value.std() == pytest.approx(1, rel=0.01)
    assert np.bincount(milps.sense.ravel()) / milps.sense.size == pytest.approx(
        [1 / 3] * 3, abs=0.02
    )
    assert (matrices(milps) != 0).mean(axis=0) == pytest.approx(np.full((6, 20), 0.5), abs=0.05)


@pytest.mark.parametrize("make", [random_milps, foldable_milps])
def test_an_instance_depends_on_its_number_and_the_seed_alone(make) -> None:
    all_at_once, one = make(range(6), seed=3), make(range(4, 5), seed=3)
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(array[0], all_at_once.arrays()[name][4])
    assert (make(range(1), seed=4).lower != all_at_once[:1].lower).any()


def test_a_foldable_instance_is_a_hexagon_or_two_triangles() -> None:
    milps = foldable_milps(range(40), seed=0)
    assert (milps.objective == 0).all() and (milps.value == 1).all()
    assert (milps.rhs == 1).all() and (milps.sense == EQUAL).all()
    for index, A in enumerate(matrices(milps)):
        binary = milps.is_integer[index]
        assert binary.sum() == 6
        assert (milps.lower[index, binary] == 0).all() and (milps.upper[index, binary] == 1).all()
        assert (A[:, ~binary] == 0).all()
        assert (A.sum(axis=0)[binary] == 2).all() and (A.sum(axis=1) == 2).all()
        reachable = np.linalg.matrix_power(A[:, binary].T @ A[:, binary], 6) > 0
        assert set(reachable.sum(axis=1)) == ({6} if index % 2 == 0 else {3})


def test_colour_refinement_cannot_tell_foldable_twins_apart() -> None:
    milps = foldable_milps(range(4), seed=0)
    assert colours(milps, 0) == colours(milps, 1)
    assert colours(milps, 0) != colours(milps, 2)


def test_colour_refinement_tells_all_nodes_of_random_milps_apart() -> None:
    variable, constraint = colours(random_milps(range(1), seed=0), 0)
    assert len(set(variable)) == 20 and len(set(constraint)) == 6


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_renumbering_keeps_the_instance(data) -> None:
    n, m = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5))
    milps = random_milps(
        range(3), seed=0, variables=n, constraints=m, nonzeros=data.draw(st.integers(1, n * m))
    )
    other = milps.permuted(data.draw(st.integers(0, 99)))
    # The objective's entries are distinct, so they give the new order away.
    for index in range(3):
        columns = np.argsort(np.argsort(other.objective[index]))
        columns = np.argsort(milps.objective[index])[columns]
        rows = np.argsort(milps.rhs[index])[np.argsort(np.argsort(other.rhs[index]))]
        for name in ("objective", "is_integer", "lower", "upper"):
            old, new = getattr(milps, name)[index], getattr(other, name)[index]
            np.testing.assert_array_equal(new, old[columns])
        np.testing.assert_array_equal(other.sense[index], milps.sense[index][rows])
        A, B = matrices(milps)[index], matrices(other)[index]
        np.testing.assert_array_equal(B, A[np.ix_(rows, columns)])
        position = other.row[index] * n + other.column[index]
        assert (np.diff(position) > 0).all()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"nonzeros": 121}, "121 non-zeros do not fit into a matrix of 6 x 20: at most 120"),
        ({"nonzeros": 0}, "non-zeros"),
        ({"variables": 0}, "variables"),
        ({"constraints": -1}, "constraints"),
    ],
)
def test_impossible_random_sizes_are_refused_in_one_sentence(sizes: dict, said: str) -> None:
    with pytest.raises(ParameterError, match=said):
        random_milps(range(1), seed=0, **sizes)


@pytest.mark.parametrize("sizes", [{"constraints": 8}, {"constraints": 2}, {"variables": 5}])
def test_impossible_cycles_are_refused(sizes: dict) -> None:
    with pytest.raises(ParameterError):
        foldable_milps(range(1), seed=0, **sizes)


def test_longer_cycles_fold_too() -> None:
    milps = foldable_milps(range(2), seed=0, variables=12, constraints=10)
    assert milps.nonzeros == 20
    assert colours(milps, 0) == colours(milps, 1)
