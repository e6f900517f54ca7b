"""The expert: SCIP's own scores, given without a trace."""

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

import pyscipopt.scip
import pytest
import torch
from pyscipopt import SCIP_PARAMSETTING, Model
from pyscipopt.scip import PY_SCIP_BRANCHDIR

from instances import FAMILIES
from instances.writing import scip_model
from solver_plugins import expert, observe, strong_branching_scores
from solver_plugins.expert import pseudocost_scores
from solver_plugins.library import pointer_to
from solver_plugins.parameters import apply_protocol

DIRECTIONS = (PY_SCIP_BRANCHDIR.DOWNWARDS, PY_SCIP_BRANCHDIR.UPWARDS)
needs_copy = pytest.mark.skipif(expert._scip() is None, reason="SCIP's functions are not visible")


def vanillafullstrong_data(model: Model) -> tuple[list[float], int]:
    """Return the scores and the choice that SCIP's rule has just computed at this node."""
    scip = ctypes.CDLL(pyscipopt.scip.__file__)
    candidates, scores = ctypes.c_void_p(), ctypes.POINTER(ctypes.c_double)()
    count, priority, best = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    code = scip.SCIPgetVanillafullstrongData(
        ctypes.c_void_p(pointer_to(model)),
        *(ctypes.byref(x) for x in (candidates, scores, count, priority, best)),
    )
    assert code == 1
    return scores[: count.value], best.value


@needs_copy
@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_choice_are_those_of_scips_own_rule(
    family: str, make: Callable, visit_nodes: Callable
) -> None:
    compared = []

    def visit(model: Model) -> None:
        theirs, best = vanillafullstrong_data(model)
        for ours in (strong_branching_scores(model), strong_branching_scores(model, in_place=True)):
            truth = torch.tensor(theirs, dtype=torch.float64)
            torch.testing.assert_close(ours, truth, rtol=1e-7, atol=1e-9)
            # Two candidates may tie up to the last bit: then either is SCIP's choice.
            assert ours[best] >= ours.max() * (1 - 1e-9)
        compared.append(int(ours.argmax()) == best)

    for k in (1, 2, 3):
        model = make(family, k)
        # SCIP's rule runs first at every node, scores, and leaves the branching to the test.
        options = ("scoreall", "collectscores", "donotbranch", "idempotent")
        model.setParams({f"branching/vanillafullstrong/{option}": True for option in options})
        model.setParam("branching/vanillafullstrong/priority", 536_870_911)
        limit = 2 if family == "setcover" else 5  # its LPs take longest
        visit_nodes(model, visit, limit=limit, priority=536_870_910)
    assert len(compared) >= 6
    assert sum(compared) >= 0.95 * len(compared)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("family", ["setcover", "cauctions"])
def test_asking_the_expert_leaves_the_node_unchanged(
    family: str, in_place: bool, make: Callable, visit_nodes: Callable
) -> None:
    def traces(model: Model) -> list:
        variables = model.getVars(transformed=True)
        bounds = [
            (v.getLbLocal(), v.getUbLocal(), v.getLbGlobal(), v.getUbGlobal()) for v in variables
        ]
        history = [v.getNBranchings(d) for v in variables for d in DIRECTIONS]
        costs = [model.getVarPseudocost(v, d) for v in variables for d in DIRECTIONS]
        counts = [
            model.getNStrongbranchLPIterations(),
            model.getNLPIterations(),
            model.getNLPs(),
            model.getNSolsFound(),
            model.getLPObjVal(),
            model.getCutoffbound(),
        ]
        return [bounds, history, costs, counts, pseudocost_scores(model).tolist()]

    def visit(model: Model) -> None:
        state, before = observe(model), traces(model)
        scores = strong_branching_scores(model, in_place=in_place)
        assert torch.isfinite(scores).all()
        again = observe(model)
        assert all(torch.equal(a, b) for a, b in zip(state.tensors(), again.tensors(), strict=True))
        assert traces(model) == before

    assert visit_nodes(make(family, 1), visit, limit=3).nodes == 3


def search(model: Model, visit_nodes: Callable, ask: bool) -> tuple:
    """Return everything that tells one search from another."""
    bounds = []

    def visit(model: Model) -> None:
        bounds.append(model.getLPObjVal())
        if ask:
            strong_branching_scores(model)

    visitor = visit_nodes(model, visit, limit=10)
    return visitor.branched_on, bounds, model.getNLPIterations(), model.getNTotalNodes()


@needs_copy
@pytest.mark.parametrize("family", FAMILIES)
def test_the_search_goes_on_as_if_the_expert_had_never_been_asked(
    family: str, make: Callable, visit_nodes: Callable
) -> None:
    for k in (1, 2):
        searches = [search(make(family, k), visit_nodes, ask) for ask in (False, True)]
        assert searches[0] == searches[1]


@needs_copy
@pytest.mark.slow
def test_real_searches_go_on_as_if_the_expert_had_never_been_asked(
    miplib: list[Path], visit_nodes: Callable
) -> None:
    for path in miplib:
        searches = []
        for ask in (False, True):
            model = Model()
            model.hideOutput()
            model.readProblem(str(path))
            apply_protocol(model, "default", seed=1)
            searches.append(search(model, visit_nodes, ask))
        assert searches[0] == searches[1], path


def test_where_scips_functions_are_missing_the_scores_are_the_same(
    make: Callable, visit_nodes: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def visit(model: Model) -> None:
        usual = strong_branching_scores(model)
        with monkeypatch.context() as patch:
            patch.setattr(expert, "_scip", lambda: None)
            torch.testing.assert_close(strong_branching_scores(model), usual, rtol=1e-7, atol=1e-9)

    assert visit_nodes(make("cauctions", 1), visit, limit=5).nodes == 5


@pytest.mark.parametrize("in_place", [False, True])
def test_a_time_limit_ends_the_work_among_the_candidates(
    in_place: bool, visit_nodes: Callable
) -> None:
    model = scip_model(FAMILIES["setcover"].instance("small", "train", 0, 1))
    model.hideOutput()
    model.setHeuristics(SCIP_PARAMSETTING.OFF)
    model.setSeparating(SCIP_PARAMSETTING.OFF)
    seen = []

    def visit(model: Model) -> None:
        allowed = 0.02
        model.setParam("limits/time", model.getSolvingTime() + allowed)
        started = time.perf_counter()
        scores = strong_branching_scores(model, in_place=in_place)
        seen.append((time.perf_counter() - started, torch.isinf(scores).sum().item(), len(scores)))

    visit_nodes(model, visit, limit=1)
    ((seconds, unscored, count),) = seen
    assert 0 < unscored <= count
    assert seconds < 2.0
    assert model.getStatus() == "timelimit"


@pytest.mark.parametrize("in_place", [False, True])
def test_an_interruption_ends_the_work_at_once(
    in_place: bool, make: Callable, visit_nodes: Callable
) -> None:
    def visit(model: Model) -> None:
        model.interruptSolve()
        scores = strong_branching_scores(model, in_place=in_place)
        assert len(scores) > 0 and torch.isinf(scores).all()

    model = make("cauctions", 1)
    visit_nodes(model, visit, limit=1)
    assert model.getStatus() == "userinterrupt"
