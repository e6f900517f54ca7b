import itertools
import os
import signal
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learn2branch.errors import InputError
from solver_plugins.primal import TrustRegion, free_binaries, most_certain, search
from solver_plugins.solvers import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    OPTIMAL,
    Instance,
    Solver,
    get_solver,
)

SCIP = get_solver("scip")
FOUR = [TrustRegion(0.1, 0.1, 0.05, t) for t in (0.1, 0.1, 0.2, 0.6)]
STRICT = [TrustRegion(0.1, 0.3, 0.02, t) for t in (0.4, 0.6)]


def write_conflicts(path, nodes=40, edges=90, seed=0):
    """Write a weighted independent set on a random graph."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(10, 30, nodes)
    lines = ["Maximize", " obj: " + " + ".join(f"{w} x{j}" for j, w in enumerate(weights))]
    pairs = {tuple(sorted(rng.choice(nodes, 2, replace=False))) for _ in range(edges)}
    lines += ["Subject To", *(f" e{u}_{v}: x{u} + x{v} <= 1" for u, v in sorted(pairs))]
    path.write_text("\n".join([*lines, "Binary", *(f" x{j}" for j in range(nodes)), "End", ""]))
    return path


@pytest.fixture(scope="module")
def instance(tmp_path_factory) -> Instance:
    return Instance.read(write_conflicts(tmp_path_factory.mktemp("primal") / "conflicts.lp"))


@pytest.fixture(scope="module")
def hard(tmp_path_factory) -> Instance:
    path = tmp_path_factory.mktemp("primal") / "hard.lp"
    return Instance.read(write_conflicts(path, nodes=400, edges=8000))


@pytest.fixture(scope="module")
def optimum(instance):
    result = SCIP.solve(instance, 20)
    assert result.status == OPTIMAL
    return result.best


@given(
    x=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    p=st.lists(st.floats(0, 1), min_size=8, max_size=8),
    k0=st.integers(0, 8),
    k1=st.integers(0, 8),
    delta=st.integers(0, 8),
)
def test_one_row_allows_exactly_delta_flips(x, p, k0, k1, delta):
    x = np.array(x, float)
    # `TrustRegion` reads numbers from 1 as counts; 0 is 0 in either reading.
    held = most_certain(np.array(p), np.arange(8), TrustRegion(k0, k1, delta), 8)
    flips = x[held.zeros].sum() + (1 - x[held.ones]).sum()
    restriction = held.restriction(np.empty(0, np.int64), np.empty(0))
    assert restriction.holds(x) == (flips <= delta or len(held.zeros) + len(held.ones) == 0)


@given(
    p=st.lists(st.floats(0, 1), min_size=1, max_size=12),
    k0=st.integers(0, 12),
    k1=st.integers(0, 12),
)
def test_the_most_certain_predictions_are_held(p, k0, k1):
    p = np.array(p)
    held = most_certain(p, np.arange(len(p)), TrustRegion(k0, k1, 0), len(p))
    assert len(held.ones) == min(k1, len(p))
    assert len(held.zeros) == min(k0, len(p) - len(held.ones))
    assert not set(held.zeros) & set(held.ones)
    others = np.setdiff1d(np.arange(len(p)), held.ones)
    assert not len(held.ones) or p[held.ones].min() >= p[others].max(initial=0)
    assert not len(held.zeros) or p[held.zeros].max() <= np.sort(p)[len(held.zeros) - 1]


def test_a_later_round_leaves_half_of_the_undecided_free():
    p = np.linspace(0, 1, 20)
    held = most_certain(p, np.arange(20), TrustRegion(5, 50, 0), 1000, at_most=10)
    assert len(held.zeros) + len(held.ones) == 10 and len(held.ones) == 10
    held = most_certain(p, np.arange(20), TrustRegion(15, 15, 0), 1000, at_most=10)
    assert (len(held.zeros), len(held.ones)) == (5, 5)
    held = most_certain(p, np.arange(20), TrustRegion(15, 0, 0), 1000, at_most=10)
    assert (len(held.zeros), len(held.ones)) == (10, 0)


def test_regions_are_shares_below_one_and_numbers_from_one():
    assert TrustRegion(400 / 1050, 5 / 1050, 40 / 1050).counts(1050) == (400, 5, 40)
    assert TrustRegion(400 / 1050, 5 / 1050, 40 / 1050).counts(105) == (40, 0, 4)
    assert TrustRegion(300, 0, 40).counts(200) == (200, 0, 40)


@pytest.mark.parametrize("wrong", [(-1, 0, 0, 1), (0, 0, -0.1, 1), (0, 0, 0, 0), (0, 0, 0, 2)])
def test_a_region_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(InputError):
        TrustRegion(*wrong)


@pytest.mark.parametrize("regions", [[], [TrustRegion(0.4, 0.2, 0.05)], FOUR])
def test_a_good_prediction_leads_to_the_optimum(instance, optimum, regions):
    result = search(instance, optimum.values, regions, solver=SCIP, time_limit=20)
    assert result.status == OPTIMAL
    assert result.best.objective == pytest.approx(optimum.objective)
    assert [phase.name for phase in result.phases[:-1]] == [
        f"region {k}" for k in range(1, len(regions) + 1)
    ]
    assert result.phases[-1].name == "unrestricted"


@pytest.mark.parametrize("regions", [[TrustRegion(0.4, 0.4, 0.02)], STRICT])
def test_a_wrong_prediction_costs_time_but_not_the_solution(instance, optimum, regions):
    result = search(instance, 1 - optimum.values, regions, solver=SCIP, time_limit=20)
    assert INFEASIBLE in [phase.status for phase in result.phases]
    assert result.status == OPTIMAL
    assert result.best.objective == pytest.approx(optimum.objective)


def test_apollo_fixes_what_the_solution_confirms(instance, optimum):
    noise = np.random.default_rng(0).normal(0, 0.2, len(optimum.values))
    result = search(instance, optimum.values + noise, FOUR, solver=SCIP, time_limit=20)
    fixed = [phase.fixed for phase in result.phases]
    assert fixed[0] == 0 and fixed[1] > 0
    assert all(a <= b for a, b in itertools.pairwise(fixed[:-1]))
    assert fixed[-1] == 0  # the last phase is the instance itself
    held = [phase.zeros + phase.ones for phase in result.phases[:-1]]
    assert sum(held) <= len(free_binaries(instance.arrays))  # nothing is asked about twice


def test_incumbents_of_all_phases_are_one_trajectory(hard):
    p = np.random.default_rng(0).uniform(size=hard.arrays.num_variables)
    seen = []
    result = search(hard, p, FOUR, solver=SCIP, time_limit=4, on_incumbent=seen.append)
    assert tuple(seen) == result.incumbents and len(seen) > 1
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))
    assert all(a.objective < b.objective for a, b in itertools.pairwise(seen))
    assert all(hard.arrays.is_feasible(one.values) for one in seen)
    assert result.seconds < 30  # and not for ever, on however busy a machine


def test_time_before_the_search_counts(instance):
    earlier = time.perf_counter() - 5
    p = np.zeros(instance.arrays.num_variables)
    late = search(instance, p, FOUR, solver=SCIP, time_limit=4, started=earlier)
    assert late.phases == () and late.best is None
    result = search(instance, p, [], solver=SCIP, time_limit=30, started=earlier)
    assert result.incumbents[0].seconds > 5


def test_stopping_a_search_keeps_what_was_found(hard):
    def stop(found):
        os.kill(os.getpid(), signal.SIGINT)  # what Ctrl-C does

    started = time.perf_counter()
    p = np.full(hard.arrays.num_variables, 0.5)
    result = search(
        hard, p, [TrustRegion(0.05, 0, 0.05)], solver=SCIP, time_limit=60, on_incumbent=stop
    )
    assert time.perf_counter() - started < 20
    assert result.status == INTERRUPTED
    assert hard.arrays.is_feasible(result.best.values)


def test_variables_without_a_choice_are_not_held(tmp_path):
    path = tmp_path / "fixed.lp"
    path.write_text(
        "Maximize\n obj: x + y + z\nSubject To\n c: x + y + z <= 2\n"
        "Bounds\n y = 1\n 0 <= x <= 1\nGeneral\n x\n y\nEnd\n"
    )
    arrays = Instance.read(path).arrays
    assert [arrays.names[j] for j in free_binaries(arrays)] == ["x"]


def test_regions_without_predictions_are_refused(instance):
    with pytest.raises(InputError, match="needs predictions"):
        search(instance, None, FOUR, solver=SCIP, time_limit=1)


class Mistaken(Solver):
    """Finds what SCIP finds, and then says that there is no solution."""

    name = "mistaken"

    def _run(self, job, record):
        _, bound = SCIP._run(job, record)
        return INFEASIBLE, bound


def test_a_solution_beside_a_proof_that_there_is_none_is_not_called_optimal(instance):
    result = search(instance, None, [], solver=Mistaken(), time_limit=20)
    assert result.status == LIMIT and result.best is not None
