"""The rule: it branches where the policy says, yields where it cannot, and never disturbs."""

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pyscipopt import SCIP_PARAMSETTING, SCIP_RESULT, Branchrule, Model
from torch import Tensor

from learn2branch import InputError
from learn2branch.features import STATE
from solver_plugins import NeuralBranchrule, include_branchrule

FRACTIONALITY = STATE.variable.index("fractionality")


def most_fractional(c: Tensor, edge_index: Tensor, edge_values: Tensor, x: Tensor) -> Tensor:
    return -(x[:, FRACTIONALITY] - 0.5).abs()


class Listener(Branchrule):
    """Runs before the rule and notes on which variables the current node was branched."""

    def __init__(self) -> None:
        self.variables: list[str] = []

    def branchexeclp(self, allowaddcons: bool) -> dict[str, object]:
        branchings = self.model.getCurrentNode().getParentBranchings()
        if branchings is not None:
            self.variables += [variable.name for variable in branchings[0]]
        return {"result": SCIP_RESULT.DIDNOTRUN}


def test_the_candidate_with_the_highest_score_is_branched_on(make: Callable) -> None:
    model, listener, chosen = make("cauctions", 3), Listener(), set()

    def policy(c: Tensor, e: Tensor, v: Tensor, x: Tensor, candidates: Tensor) -> Tensor:
        scores = most_fractional(c, e, v, x)[candidates]
        variables = rule.model.getVars(transformed=True)
        chosen.add(variables[candidates[scores.argmax()]].name)
        return scores

    rule = include_branchrule(model, policy, priority=1_000_000)
    model.includeBranchrule(listener, "listener", "", 2_000_000, -1, 1.0)
    model.optimize()
    assert rule.statistics.decisions > 5
    assert listener.variables and set(listener.variables) <= chosen


def test_scores_of_all_variables_and_of_the_candidates_give_the_same_tree(make: Callable) -> None:
    def of_candidates(*state: Tensor, candidates: Tensor) -> Tensor:
        return most_fractional(*state)[candidates]

    nodes = []
    for policy in (most_fractional, of_candidates):
        model = make("cauctions", 3)
        rule = include_branchrule(model, policy)
        model.optimize()
        nodes.append((model.getNTotalNodes(), model.getNLPIterations(), rule.statistics.decisions))
    assert nodes[0] == nodes[1] and nodes[0][0] > 5


class MostFractional(torch.nn.Module):
    def forward(self, c: Tensor, edge_index: Tensor, edge_values: Tensor, x: Tensor) -> Tensor:
        return -(x[:, 9] - 0.5).abs()


class MostFractionalOfCandidates(torch.nn.Module):
    def forward(
        self, c: Tensor, edge_index: Tensor, edge_values: Tensor, x: Tensor, candidates: Tensor
    ) -> Tensor:
        return -(x[candidates, 9] - 0.5).abs()


def of_anything(*state: Tensor, **unused: Tensor) -> Tensor:
    return most_fractional(*state)


@pytest.mark.parametrize("scripted", [False, True])
def test_a_module_branches_as_the_function_does(scripted: bool, make: Callable) -> None:
    """A module's own signature takes any keyword, so it once got candidates it did not know."""
    assert FRACTIONALITY == 9  # a number that torch can script
    modules = [MostFractional(), MostFractionalOfCandidates()]
    policies = [torch.jit.script(m) for m in modules] if scripted else [*modules, of_anything]
    decisions = []
    for policy in [most_fractional, *policies]:
        model = make("cauctions", 3)
        rule = include_branchrule(model, policy, strict=True)
        model.optimize()
        decisions.append(rule.statistics.decisions)
    assert decisions[0] > 5 and len(set(decisions)) == 1


def test_the_same_seed_and_policy_give_the_same_tree(miplib: list[Path]) -> None:
    def tree(path: Path) -> tuple:
        model = Model()
        model.hideOutput()
        model.readProblem(str(path))
        model.setParam("limits/totalnodes", 60)
        include_branchrule(model, most_fractional)
        model.optimize()
        return model.getNTotalNodes(), model.getNLPIterations(), model.getDualbound()

    path = next(path for path in miplib if path.name.startswith("p0201"))
    first = tree(path)
    assert first[0] > 5 and first == tree(path)


def test_below_max_depth_scip_decides(make: Callable) -> None:
    depths = []

    def policy(*state: Tensor) -> Tensor:
        depths.append(rule.model.getDepth())
        return most_fractional(*state)

    model = make("cauctions", 3)
    rule = include_branchrule(model, policy, max_depth=1)
    model.optimize()
    assert set(depths) == {0, 1} and model.getNTotalNodes() > 4


def test_past_its_time_share_scip_decides(make: Callable) -> None:
    model = make("cauctions", 3)
    rule = include_branchrule(model, most_fractional, time_share=0.0)
    model.optimize()
    assert rule.statistics.decisions == 1
    assert rule.statistics.fallbacks["time share"] > 1
    assert model.getStatus() == "optimal"


def test_with_a_low_priority_it_is_never_asked(make: Callable) -> None:
    model = make("setcover", 1)
    rule = include_branchrule(model, most_fractional, priority=-1_000_000)
    model.optimize()
    assert rule.statistics.decisions == 0 and model.getNTotalNodes() > 1


def test_threads_are_set_during_inference_only(make: Callable) -> None:
    seen, before = set(), torch.get_num_threads()

    def policy(*state: Tensor) -> Tensor:
        seen.add(torch.get_num_threads())
        return most_fractional(*state)

    model = make("cauctions", 3)
    include_branchrule(model, policy, threads=before + 1)
    model.optimize()
    assert seen == {before + 1} and torch.get_num_threads() == before


@pytest.mark.parametrize("option", [{"time_share": 1.5}, {"threads": 0}])
def test_impossible_options_are_named(option: dict, make: Callable) -> None:
    with pytest.raises(InputError, match=next(iter(option))):
        include_branchrule(make("cauctions"), most_fractional, **option)


def of_another_schema() -> Callable:
    def policy(*state: Tensor) -> Tensor:
        raise AssertionError("must not be called")

    policy.metadata = {"task": "element", "schema": {"hash": "another"}}  # type: ignore[attr-defined]
    return policy


def failing(*state: Tensor) -> Tensor:
    raise KeyError("no such thing")


FAILURES = {
    "not a number": (lambda *state: most_fractional(*state) * torch.nan, "non-finite scores"),
    "infinite": (lambda *state: most_fractional(*state) + torch.inf, "non-finite scores"),
    "raises": (failing, "exception"),
    "wrong length": (lambda *state: most_fractional(*state)[:2], "exception"),
    "no tensor": (lambda *state: 17, "exception"),
    "other schema": (of_another_schema(), "schema"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_policy_costs_its_decisions_only(name: str, make: Callable) -> None:
    policy, cause = FAILURES[name]
    reference, model = make("cauctions", 3), make("cauctions", 3)
    reference.optimize()
    rule = include_branchrule(model, policy)
    model.optimize()
    assert model.getStatus() == "optimal"
    assert model.getObjVal() == pytest.approx(reference.getObjVal())
    assert rule.statistics.decisions == 0
    assert set(rule.statistics.fallbacks) == {cause} and rule.statistics.fallbacks[cause] > 1
    assert rule.error is not None
    # All decisions were SCIP's, so the search is SCIP's.
    assert model.getNTotalNodes() == reference.getNTotalNodes()


@pytest.mark.parametrize("name", ["not a number", "raises", "other schema"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_strict_ends_the_solve_with_an_exception(name: str, make: Callable) -> None:
    model = make("cauctions", 3)
    rule = include_branchrule(model, FAILURES[name][0], strict=True)
    with pytest.raises(Exception, match="SCIP"):
        model.optimize()
    assert rule.error is not None
    if name == "raises":
        assert isinstance(rule.error, KeyError)
    model.free()


def test_only_candidates_of_the_highest_priority_are_chosen(make: Callable) -> None:
    model = make("cauctions", 3)
    preferred = {variable.name for variable in model.getVars()[::4]}
    for variable in model.getVars():
        model.chgVarBranchPriority(variable, 10 if variable.name in preferred else 0)
    offered = []

    def policy(*state: Tensor, candidates: Tensor) -> Tensor:
        variables = rule.model.getVars(transformed=True)
        offered.append({variables[i].name.removeprefix("t_") for i in candidates} <= preferred)
        return most_fractional(*state)[candidates]

    rule = include_branchrule(model, policy)
    model.optimize()
    assert offered and any(offered)
    assert rule.statistics.decisions == len(offered)


def test_statistics_account_for_the_time(make: Callable) -> None:
    model = make("cauctions", 3)
    rule = include_branchrule(model, most_fractional)
    assert rule.statistics.decisions == 0 and rule.statistics.share == 0.0
    model.optimize()
    statistics = rule.statistics
    parts = (
        statistics.observation_seconds,
        statistics.inference_seconds,
        statistics.branching_seconds,
    )
    assert all(part > 0 for part in parts)
    assert statistics.seconds == pytest.approx(sum(parts))
    assert 0 < statistics.share <= 1
    assert statistics.solving_seconds == pytest.approx(model.getSolvingTime())
    assert str(statistics.decisions) in str(statistics)
    model.free()
    assert rule.statistics.decisions == statistics.decisions > 0


def test_general_integers_continuous_and_implicit_variables_and_both_senses(
    mixed: Callable,
) -> None:
    for maximise in (True, False):
        reference, model = mixed(maximise=maximise), mixed(maximise=maximise)
        reference.optimize()
        rule = include_branchrule(model, most_fractional)
        model.optimize()
        assert rule.statistics.decisions > 3 and not rule.statistics.fallbacks
        assert model.getObjVal() == pytest.approx(reference.getObjVal())


def test_presolve_may_leave_nothing_to_branch_on() -> None:
    model = Model()
    model.hideOutput()
    x = model.addVar("x", "I", 0, 10, -1.0)
    model.addCons(2 * x <= 7)
    rule = include_branchrule(model, most_fractional)
    model.optimize()
    assert model.getStatus() == "optimal" and model.getObjVal() == -3
    assert rule.statistics.decisions == 0


def test_restarts_and_cuts_below_the_root(
    miplib: list[Path], capfd: pytest.CaptureFixture[str]
) -> None:
    path = next(path for path in miplib if path.name.startswith("p0201"))
    runs = set()

    def policy(*state: Tensor) -> Tensor:
        runs.add(rule.model.getNRuns())
        if rule.statistics.decisions == 3:
            rule.model.restartSolve()
        return most_fractional(*state)

    model = Model()
    model.hideOutput()
    model.readProblem(str(path))
    model.setParams({"separating/maxrounds": 3, "separating/maxroundsroot": 2})
    rule = include_branchrule(model, policy, strict=True)
    model.optimize()
    assert model.getStatus() == "optimal" and model.getObjVal() == pytest.approx(7615)
    assert len(runs) > 1
    assert capfd.readouterr().err == ""  # SCIP complains there of what may not be asked just then


@pytest.mark.parametrize(
    ("parameter", "value", "status"),
    [
        ("limits/totalnodes", 5, "totalnodelimit"),
        ("limits/nodes", 5, "nodelimit"),
        ("limits/time", 0.05, "timelimit"),
        ("limits/memory", 1.0, "memlimit"),
    ],
)
def test_limits_of_the_user_end_the_solve(
    parameter: str, value: float, status: str, miplib: list[Path]
) -> None:
    model = Model()
    model.hideOutput()
    path = next(path for path in miplib if path.name.startswith("bell5"))
    model.readProblem(str(path))
    model.setParam(parameter, value)
    rule = include_branchrule(model, most_fractional)
    model.optimize()
    assert model.getStatus() == status
    assert "exception" not in rule.statistics.fallbacks


def test_ctrl_c_ends_the_solve(make: Callable) -> None:
    def policy(*state: Tensor) -> Tensor:
        if rule.statistics.decisions == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return most_fractional(*state)

    model = make("cauctions", 3)
    rule = include_branchrule(model, policy)
    model.optimize()
    assert model.getStatus() == "userinterrupt"
    assert rule.statistics.decisions == 3


def test_models_in_threads_do_not_disturb_each_other(make: Callable) -> None:
    def solve(k: int, results: dict[int, tuple]) -> None:
        model = models[k]
        rule = include_branchrule(model, most_fractional)
        model.optimizeNogil()
        results[k] = (
            model.getObjVal(),
            model.getNTotalNodes(),
            model.getNLPIterations(),
            rule.statistics.decisions,
        )

    numbers, alone, together = (1, 3, 4, 5), {}, {}
    models = {k: make("cauctions", k) for k in numbers}
    for k in numbers:
        solve(k, alone)
    models = {k: make("cauctions", k) for k in numbers}
    threads = [threading.Thread(target=solve, args=(k, together)) for k in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone and all(result[3] > 0 for result in alone.values())


def test_a_rule_is_an_ordinary_plugin_too(make: Callable) -> None:
    model, rule = make("cauctions", 3), NeuralBranchrule(most_fractional)
    model.includeBranchrule(rule, "mine", "", 1_000_000, -1, 1.0)
    model.optimize()
    assert rule.statistics.decisions > 0


# Policies from files.


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from learn2branch import build_model, export_policy

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    export_policy(build_model("bgnn", task="state", size="small"), path)
    return path


def test_a_policy_file_branches(policy_file: Path, make: Callable) -> None:
    trees = []
    for _ in range(2):
        model = make("cauctions", 3)
        rule = include_branchrule(model, policy_file, strict=True)
        model.optimize()
        assert rule.statistics.decisions > 0 and not rule.statistics.fallbacks
        trees.append((model.getNTotalNodes(), model.getNLPIterations()))
    assert trees[0] == trees[1]


class Bomb:
    def __reduce__(self) -> tuple:
        return (os.mkdir, (str(Bomb.path),))

    path: Path


def test_a_file_that_is_no_policy_is_refused_and_not_executed(
    policy_file: Path, make: Callable, tmp_path: Path
) -> None:
    from learn2branch import build_model, export_policy

    Bomb.path = tmp_path / "executed"
    bad = {name: tmp_path / f"{name}.pt" for name in ("text", "cut", "pickle", "saved", "element")}
    bad["text"].write_text("not a policy")
    bad["cut"].write_bytes(policy_file.read_bytes()[:5000])
    bad["pickle"].write_bytes(pickle.dumps(Bomb()))
    torch.save(Bomb(), bad["saved"])
    export_policy(build_model("bgnn", task="element", size="small"), bad["element"])
    bad["missing"] = tmp_path / "nowhere.pt"
    for path in bad.values():
        with pytest.raises(InputError) as raised:
            include_branchrule(make("cauctions"), path)
        assert path.name in str(raised.value) and "\n" not in str(raised.value)
    assert not Bomb.path.exists()


def test_a_model_that_is_solved_again_goes_on_counting(make: Callable) -> None:
    """SCIP's clock starts anew, so that the rule's share once grew beyond all of the time."""
    model = make("cauctions", 3)
    rule = include_branchrule(model, most_fractional)
    seconds = []
    for _ in range(3):
        model.optimize()
        seconds.append(model.getSolvingTime())
        assert rule.statistics.solving_seconds == pytest.approx(sum(seconds), rel=0.1)
        model.freeTransform()
    assert rule.statistics.decisions > 15 and 0 < rule.statistics.share < 1


def test_a_node_whose_lp_is_unbounded_is_not_the_policys_failure() -> None:
    model = Model()
    model.hideOutput()
    model.setHeuristics(SCIP_PARAMSETTING.OFF)
    model.setPresolve(SCIP_PARAMSETTING.OFF)
    model.setParams({"propagating/maxrounds": 0, "propagating/maxroundsroot": 0})
    x = [model.addVar(vtype="I", lb=0, ub=None, obj=-1) for _ in range(4)]
    model.addCons(x[0] + x[1] - x[2] - 2 * x[3] <= 1.5)
    model.addCons(2 * x[0] + 2 * x[1] + 2 * x[2] >= 3)
    model.addCons(2 * x[0] - 2 * x[1] >= 0.5)
    model.addCons(2 * x[0] - 2 * x[1] <= 1.9)
    rule = include_branchrule(model, most_fractional, strict=True)
    model.optimize()
    assert set(rule.statistics.fallbacks) == {"no LP solution"} and rule.error is None


def test_a_second_rule_and_a_solved_model_are_refused_in_a_sentence(make: Callable) -> None:
    model = make("cauctions", 3)
    include_branchrule(model, most_fractional)
    with pytest.raises(InputError, match="has a learned rule already"):
        include_branchrule(model, most_fractional)
    solved = make("cauctions", 3, helped=True)
    solved.optimize()
    with pytest.raises(InputError, match="has been solved"):
        include_branchrule(solved, most_fractional)


def test_an_interrupt_inside_a_policy_ends_the_solve_as_ctrl_c_does(make: Callable) -> None:
    def policy(*state: Tensor) -> Tensor:
        raise KeyboardInterrupt

    model = make("cauctions", 3)
    include_branchrule(model, policy)
    model.optimize()
    assert model.getStatus() == "userinterrupt"
