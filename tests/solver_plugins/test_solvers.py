import gc
import itertools
import os
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from pyscipopt import Eventhdlr

from learn2branch.errors import InputError
from solver_plugins import reading
from solver_plugins.reading import read_model
from solver_plugins.solvers import (
    INFEASIBLE,
    LIMIT,
    OPTIMAL,
    SOLVERS,
    Effort,
    Instance,
    Restriction,
    _Record,
    get_solver,
)

PACKAGES = {"scip": "pyscipopt", "highs": "highspy", "gurobi": "gurobipy"}
INSTALLED = [name for name in SOLVERS if find_spec(PACKAGES[name])]


@pytest.fixture(params=INSTALLED)
def solver(request):
    return get_solver(request.param)


def write_knapsacks(path: Path, items: int, rows: int, seed: int = 0) -> Path:
    """Write a multidimensional knapsack with one continuous variable and an offset."""
    rng = np.random.default_rng(seed)
    weights, prices = rng.integers(5, 60, (rows, items)), rng.integers(10, 90, items)
    lines = ["Maximize", " obj: " + " + ".join(f"{p} x{j}" for j, p in enumerate(prices))]
    lines += [" + 0.5 slack + 100", "Subject To"]
    lines += [
        f" c{i}: {' + '.join(f'{w} x{j}' for j, w in enumerate(row))} + slack <= {row.sum() // 2}"
        for i, row in enumerate(weights)
    ]
    lines += ["Bounds", " slack <= 3", "Binary", *(f" x{j}" for j in range(items)), "End", ""]
    path.write_text("\n".join(lines))
    return path


def write_market_split(path: Path) -> Path:
    """Write an instance on which no solver finds a solution in any reasonable time."""
    weights = np.random.default_rng(0).integers(0, 100, (6, 50))
    lines = ["Minimize", " obj: x0", "Subject To"]
    lines += [
        f" c{i}: {' + '.join(f'{w} x{j}' for j, w in enumerate(row))} = {row.sum() // 2}"
        for i, row in enumerate(weights)
    ]
    lines += ["Binary", *(f" x{j}" for j in range(50)), "End", ""]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def small(tmp_path) -> Instance:
    return Instance.read(write_knapsacks(tmp_path / "small.lp", items=10, rows=3))


@pytest.fixture
def hard(tmp_path) -> Instance:
    return Instance.read(write_knapsacks(tmp_path / "hard.lp", items=200, rows=20))


def optimum_by_enumeration(instance: Instance, restriction: Restriction | None = None) -> float:
    """Try every assignment of the binaries; the slack takes what the tightest row leaves."""
    arrays = instance.arrays
    slack = arrays.names.index("slack")
    best = -np.inf
    for bits in itertools.product((0.0, 1.0), repeat=arrays.num_variables - 1):
        x = np.insert(np.array(bits), slack, 0.0)
        x[slack] = min(3.0, float(np.min(arrays.rhs - arrays.matrix @ x)))
        if arrays.is_feasible(x) and (restriction is None or restriction.holds(x)):
            best = max(best, arrays.objective_of(x))
    return best


def test_every_solver_finds_the_optimum(solver, small):
    result = solver.solve(small, 20)
    assert result.status == OPTIMAL
    assert result.best.objective == pytest.approx(optimum_by_enumeration(small))
    assert result.bound == pytest.approx(result.best.objective)


def test_incumbents_improve_in_time_and_value_and_are_feasible(solver, hard):
    seen = []
    result = solver.solve(hard, 0.8, on_incumbent=seen.append)
    assert seen and tuple(seen) == result.incumbents
    times, values = zip(*((one.seconds, one.objective) for one in seen), strict=True)
    assert list(times) == sorted(times) and times[0] >= 0 and times[-1] <= result.seconds
    assert all(a < b for a, b in itertools.pairwise(values))  # it is a maximisation
    for one in seen:
        assert hard.arrays.is_feasible(one.values)
        assert one.objective == hard.arrays.objective_of(one.values)
    assert result.rejected == 0


def test_the_time_limit_is_wall_time(solver, hard):
    started = time.perf_counter()
    result = solver.solve(hard, 0.6)
    assert result.status == LIMIT
    assert time.perf_counter() - started < 4
    assert result.bound >= result.best.objective


def test_a_restriction_holds_for_every_solution(solver, small):
    x = np.flatnonzero(small.arrays.is_binary)
    restriction = Restriction(
        members=x[:6],
        coefficients=np.array([1.0, 1, 1, -1, -1, -1]),
        side=-1.0,
        fixed=x[6:8],
        fixed_to=np.array([0.0, 1.0]),
    )
    result = solver.solve(small, 20, restriction=restriction)
    assert result.status == OPTIMAL
    assert all(restriction.holds(one.values) for one in result.incumbents)
    assert result.best.objective == pytest.approx(optimum_by_enumeration(small, restriction))


def test_an_empty_region_is_infeasible(solver, small):
    x = np.flatnonzero(small.arrays.is_binary)
    everything = Restriction(fixed=x, fixed_to=np.ones(len(x)))
    result = solver.solve(small, 20, restriction=everything)
    assert result.status == INFEASIBLE and result.best is None and result.pool == ()


def test_a_start_is_taken_up(solver, hard):
    start = solver.solve(hard, 0.7, Effort(seed=1)).best
    result = solver.solve(hard, 0.8, start=start.values)
    assert result.incumbents[0].objective >= start.objective - 1e-6
    assert result.incumbents[0].seconds < 0.8


def test_a_start_outside_the_restriction_is_left_alone(solver, small):
    optimum = solver.solve(small, 20).best.values
    one = np.flatnonzero(small.arrays.is_binary & (optimum > 0.5))[:1]
    without = Restriction(fixed=one, fixed_to=np.zeros(1))
    result = solver.solve(small, 20, restriction=without, start=optimum)
    assert result.status == OPTIMAL
    assert result.best.objective == pytest.approx(optimum_by_enumeration(small, without))


def test_patience_ends_a_solve_that_shows_nothing(solver, tmp_path):
    instance = Instance.read(write_market_split(tmp_path / "split.lp"))
    result = solver.solve(instance, 60, patience=0.5)
    assert result.status == LIMIT and not result.incumbents
    assert result.seconds < 6


def test_patience_does_not_end_a_solve_that_has_solutions(solver, hard):
    result = solver.solve(hard, 1.0, patience=0.4)
    assert result.incumbents and result.seconds > 0.8


def test_the_pool_holds_the_best_distinct_solutions(solver, hard):
    result = solver.solve(hard, 0.8, Effort(pool_size=5))
    values = [one.objective for one in result.pool]
    assert 1 < len(values) <= 5 and values == sorted(values, reverse=True)
    assert values[0] == result.best.objective
    binaries = hard.arrays.is_binary
    assert len({np.round(one.values[binaries]).tobytes() for one in result.pool}) == len(values)
    assert all(hard.arrays.is_feasible(one.values) for one in result.pool)


def test_solvers_agree_on_an_infeasible_instance(solver, tmp_path):
    path = tmp_path / "none.lp"
    path.write_text(
        "Minimize\n obj: x\nSubject To\n a: x + y >= 3\n b: x + 2 y <= 2\nBinary\n x\n y\nEnd\n"
    )
    assert solver.solve(Instance.read(path), 10).status == INFEASIBLE


def test_an_unbounded_instance_is_the_users_mistake(solver, tmp_path):
    path = tmp_path / "endless.lp"
    path.write_text("Maximize\n obj: x + y\nSubject To\n a: x - y <= 3\nGeneral\n x\n y\nEnd\n")
    with pytest.raises(InputError, match="unbounded"):
        solver.solve(Instance.read(path), 10)


def test_a_solution_the_instance_does_not_accept_is_not_reported(small):
    seen = []
    record = _Record(small.arrays, 3, seen.append)
    record.add(np.where(small.arrays.is_binary, 1.0, 0.0))  # every item: too heavy
    record.add(np.full(small.arrays.num_variables, np.nan))
    assert record.rejected == 2 and not seen and not record.pool


def test_the_same_seed_gives_the_same_incumbents(small):
    scip = get_solver("scip")
    one, other = (scip.solve(small, 20, Effort(seed=3)) for _ in range(2))
    assert [a.objective for a in one.incumbents] == [b.objective for b in other.incumbents]


def test_an_unknown_solver_is_answered_with_the_known_ones():
    with pytest.raises(InputError, match="scip, highs, gurobi"):
        get_solver("cplex")


@pytest.mark.skipif(find_spec("gurobipy") is not None, reason="gurobipy is installed")
def test_a_solver_that_is_not_installed_says_how_to_install_it():
    with pytest.raises(InputError, match=r"pip install learn2branch\[gurobi\]"):
        get_solver("gurobi")


def test_scip_gives_its_memory_back_with_the_result(small, monkeypatch):
    # A worker grew by 40 MB a search while its models waited for Python to look for cycles.
    freed = []

    class Watch(Eventhdlr):
        def eventfree(self):
            freed.append(True)

    def watched_model(path):
        model = read_model(path)
        model.includeEventhdlr(Watch(), "watch", "notices when SCIP is freed")
        return model

    monkeypatch.setattr(reading, "read_model", watched_model)
    gc.disable()
    try:
        get_solver("scip").solve(small, 10)
    finally:
        gc.enable()
    assert freed == [True]


def test_an_optimum_that_the_instance_does_not_accept_proves_nothing(small):
    record = _Record(small.arrays, 1, None)
    record.add(np.zeros(small.arrays.num_variables))
    assert record.result(small, None, OPTIMAL, bound=1e3).status == OPTIMAL
    record.add(np.full(small.arrays.num_variables, 0.5))  # which the binaries may not be
    assert record.rejected == 1
    assert record.result(small, None, OPTIMAL, bound=1e3).status == LIMIT
    assert record.result(small, None, OPTIMAL, record.incumbents[-1].objective).status == OPTIMAL


def test_what_a_callback_raises_reaches_the_caller(small):
    def fail(found):
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        get_solver("scip").solve(small, 20, on_incumbent=fail)


def test_reading_in_many_threads_leaves_stderr_alone(small):
    before = os.fstat(2)
    threads = [
        threading.Thread(target=lambda: [read_model(small.path) for _ in range(20)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.path.samestat(os.fstat(2), before)
