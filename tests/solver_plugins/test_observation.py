"""The LP state: what the numbers are, that both paths agree, and what is kept between nodes."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyscipopt import SCIP_PARAMSETTING, Model

from instances import FAMILIES
from learn2branch import BipartiteGraph, InputError
from learn2branch.features import STATE
from solver_plugins import Observer, observation, observe
from solver_plugins.observation import plain_observe
from solver_plugins.parameters import apply_protocol

COLUMN = {name: i for i, name in enumerate(STATE.variable)}
needs_c = pytest.mark.skipif(
    not observation.has_fast_path(), reason="the C path was not compiled, or SCIP is another one"
)


def assert_equal_states(fast: BipartiteGraph, plain: BipartiteGraph) -> None:
    assert torch.equal(fast.edge_index, plain.edge_index)
    for ours, truth in zip(fast.tensors(), plain.tensors(), strict=True):
        assert ours.dtype == truth.dtype
        torch.testing.assert_close(ours, truth, rtol=1e-6, atol=1e-6)


class Comparison:
    """Compares the C path, kept over a solve, with the plain one; counts changes of the matrix."""

    def __init__(self) -> None:
        self.observer, self.matrices, self.nodes = Observer(), 0, 0
        self.last: torch.Tensor | None = None

    def __call__(self, model: Model) -> None:
        state = self.observer.observe(model)
        assert_equal_states(state, plain_observe(model))
        candidates = [v.name for v in model.getLPBranchCands()[0]]
        variables = model.getVars(transformed=True)
        assert [variables[i].name for i in self.observer.candidates(model)] == candidates
        self.matrices += state.edge_index is not self.last
        self.last = state.edge_index
        self.nodes += 1


@needs_c
@pytest.mark.parametrize("family", FAMILIES)
def test_c_equals_plain_on_every_family(family: str, make: Callable, visit_nodes: Callable) -> None:
    comparison = Comparison()
    for k in (1, 2):
        model = make(family, k)
        apply_protocol(model, "gasse", seed=k)
        visit_nodes(model, comparison, limit=8)
    assert comparison.nodes >= 8


@needs_c
def test_c_equals_plain_with_cuts_below_the_root(miplib: list[Path], visit_nodes: Callable) -> None:
    changed = 0
    for path in miplib:
        model, comparison = Model(), Comparison()
        model.hideOutput()
        model.readProblem(str(path))
        model.setSeparating(SCIP_PARAMSETTING.AGGRESSIVE)
        model.setParam("separating/maxroundsroot", 3)
        visit_nodes(model, comparison, limit=12)
        changed += comparison.matrices > 1
    assert changed >= 3


@needs_c
@pytest.mark.parametrize("maximise", [True, False])
def test_c_equals_plain_on_every_kind_of_row_and_variable(
    maximise: bool, mixed: Callable, visit_nodes: Callable
) -> None:
    comparison, seen = Comparison(), []

    def visit(model: Model) -> None:
        comparison(model)
        seen.append(plain_observe(model))

    visit_nodes(mixed(maximise=maximise), visit, limit=30)
    assert comparison.nodes >= 10
    features = torch.cat([state.variable_features for state in seen])
    for name in ("is_binary", "is_integer", "is_implicit_integer", "is_continuous"):
        assert features[:, COLUMN[name]].any()
    assert (features[:, COLUMN["has_lower_bound"]] == 0).any()
    assert (features[:, COLUMN["has_upper_bound"]] == 0).any()
    assert not features[features[:, COLUMN["is_continuous"]] == 1, COLUMN["fractionality"]].any()


@needs_c
def test_c_equals_plain_after_a_restart(make: Callable, visit_nodes: Callable) -> None:
    comparison, runs = Comparison(), set()

    def visit(model: Model) -> None:
        comparison(model)
        runs.add(model.getNRuns())
        if comparison.nodes == 4:
            model.restartSolve()

    model = make("cauctions", 3)
    model.setParam("presolving/maxrestarts", -1)
    visit_nodes(model, visit, limit=12)
    assert len(runs) == 2 and comparison.nodes > 4


@needs_c
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32 - 1))
def test_c_equals_plain_on_random_programs(visit_nodes: Callable, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Model()
    model.hideOutput()
    n, m = rng.integers(3, 12), rng.integers(1, 9)
    variables = [
        model.addVar(
            vtype=str(rng.choice(["B", "I", "C"])), lb=0, ub=float(rng.integers(1, 9)), obj=cost
        )
        for cost in rng.integers(-9, 10, n).tolist()
    ]
    for _ in range(m):
        row = sum(
            c * x for c, x in zip(rng.integers(-5, 6, n).tolist(), variables, strict=True) if c
        )
        if isinstance(row, int):
            continue
        low = float(rng.integers(-20, 1)) - 0.5
        model.addCons((row >= low) <= low + float(rng.integers(1, 40)))
    if rng.random() < 0.5:
        model.setMaximize()
    visit_nodes(model, Comparison(), limit=5)


def test_a_row_with_two_sides_becomes_two_constraints(visit_nodes: Callable) -> None:
    def visit(model: Model) -> None:
        state = observe(model)
        (row,) = model.getLPRowsData()
        scale = row.getNorm()
        assert state.num_constraints == 2
        left, right = state.constraint_features
        assert left[0].item() == pytest.approx(2.5 / scale)
        assert right[0].item() == pytest.approx(3.25 / scale)
        assert left[1].item() == pytest.approx(-right[1].item())
        half = state.num_edges // 2
        assert state.edge_index[0].tolist() == [0] * half + [1] * half
        assert torch.equal(state.edge_values[:half], -state.edge_values[half:])
        assert state.edge_values.norm().item() == pytest.approx(math.sqrt(2))

    model = Model()
    model.hideOutput()
    x = [model.addVar(f"x{j}", "I", -3, 3, obj) for j, obj in enumerate((-5, 4, -3))]
    model.addCons((2 * x[0] - 3 * x[1] + 1.5 * x[2] >= -2.5) <= 3.25)
    model.setPresolve(SCIP_PARAMSETTING.OFF)
    model.setHeuristics(SCIP_PARAMSETTING.OFF)
    model.setSeparating(SCIP_PARAMSETTING.OFF)
    assert visit_nodes(model, visit, limit=1).nodes == 1


def test_maximising_is_minimising_the_negation(mixed: Callable, visit_nodes: Callable) -> None:
    states: dict[bool, list[BipartiteGraph]] = {True: [], False: []}
    for maximise, seen in states.items():
        model = mixed(maximise=maximise)
        visit_nodes(model, lambda model, seen=seen: seen.append(plain_observe(model)), limit=5)
    assert states[True]
    for first, second in zip(states[True], states[False], strict=True):
        for a, b in zip(first.tensors(), second.tensors(), strict=True):
            assert torch.equal(a, b)
        assert first.variable_features[:, COLUMN["reduced_cost"]].any()


def test_the_matrix_is_the_same_object_until_it_changes(
    make: Callable, visit_nodes: Callable
) -> None:
    for observer in (Observer(), Observer(fast=False)):
        states: list[BipartiteGraph] = []

        def visit(model: Model, states: list = states, observer: Observer = observer) -> None:
            states.append(observer.observe(model))

        visit_nodes(make("cauctions", 1), visit, limit=6)
        assert len(states) == 6
        for state in states[1:]:
            assert state.edge_index is states[0].edge_index
            assert state.edge_values is states[0].edge_values
            assert state.variable_features is not states[0].variable_features
        assert not torch.equal(states[0].variable_features, states[-1].variable_features)


def test_incumbent_columns_are_zero_until_there_is_one(
    make: Callable, visit_nodes: Callable
) -> None:
    columns = [COLUMN["incumbent_value"], COLUMN["average_incumbent_value"]]
    without, with_one = [], []

    def visit(model: Model) -> None:
        values = observe(model).variable_features[:, columns]
        assert torch.isfinite(values).all()
        (with_one if model.getNSols() else without).append(values)

    visit_nodes(make("setcover", 1), visit, limit=200)
    assert without and with_one
    assert all(not values.any() for values in without)
    assert all(values.any() for values in with_one)


def test_agrees_with_gyozas_where_gyozas_agrees_with_ecole(
    make: Callable, visit_nodes: Callable
) -> None:
    gyozas = pytest.importorskip("gyozas.observations")
    theirs = gyozas.NodeBipartiteEcole()
    cosine = STATE.constraint.index("objective_cosine")

    def visit(model: Model) -> None:
        state, other = observe(model), theirs.extract(model, False)
        np.testing.assert_allclose(
            state.variable_features.numpy(), other.variable_features, rtol=1e-5, atol=1e-6
        )
        ours, others = state.constraint_features.numpy(), other.row_features
        # They take the cosine's absolute value, and number edges by LP position.
        others[:, cosine], ours[:, cosine] = abs(others[:, cosine]), abs(ours[:, cosine])
        np.testing.assert_allclose(ours, others, rtol=1e-5, atol=1e-6)
        position = [v.getCol().getLPPos() for v in model.getVars(transformed=True)]
        mapped = np.array(position)[state.edge_index[1].numpy()]
        assert np.array_equal(mapped, other.edge_features.indices[1])
        assert np.array_equal(state.edge_index[0].numpy(), other.edge_features.indices[0])
        np.testing.assert_allclose(
            state.edge_values.numpy(), other.edge_features.values, rtol=1e-5, atol=1e-6
        )

    for family in ("setcover", "facilities"):
        assert visit_nodes(make(family, 1), visit, limit=5).nodes == 5


def test_there_is_nothing_to_observe_outside_a_node(make: Callable) -> None:
    model = make("setcover")
    with pytest.raises(InputError, match="no LP state"):
        observe(model)
    model.optimize()
    with pytest.raises(InputError, match="no LP state"):
        observe(model)


def test_without_the_c_path_the_plain_one_answers(
    make: Callable, visit_nodes: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observation, "_scip", None)
    observation.has_fast_path.cache_clear()
    try:
        assert not observation.has_fast_path()
        visitor = visit_nodes(
            make("setcover", 1),
            lambda model: assert_equal_states(observe(model), plain_observe(model)),
            limit=2,
        )
        assert visitor.nodes == 2
    finally:
        observation.has_fast_path.cache_clear()
