import random
from pathlib import Path

import pytest
from pyscipopt import SCIP_EVENTTYPE, Eventhdlr, Model, quicksum

from learn2branch.errors import InputError
from solver_plugins import solve as module
from solver_plugins.parameters import apply_protocol, set_parameters
from solver_plugins.reading import read_model
from solver_plugins.solve import prefer_rule, scip_rules, solve

RULES = ("relpscost", "fullstrong", "vanillafullstrong", "pscost", "mostinf", "random")


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a maximisation that no rule settles at the root (a multi-dimensional knapsack)."""
    rng = random.Random(7)
    model = Model()
    model.hideOutput()
    x = [model.addVar(f"x{j}", vtype="B") for j in range(24)]
    for _ in range(6):
        weights = [rng.randint(10, 60) for _ in x]
        model.addCons(quicksum(w * v for w, v in zip(weights, x, strict=True)) <= sum(weights) // 3)
    model.setObjective(quicksum(rng.randint(20, 50) * v for v in x), "maximize")
    path = tmp_path_factory.mktemp("instances") / "knapsack.lp"
    model.writeProblem(str(path), verbose=False)
    return path


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_finds_the_same_optimum_and_its_own_tree(instance: Path, rule: str) -> None:
    result = solve(instance, rule=rule, seed=3)
    assert result.status == "optimal" and result.finished
    assert result.objective == pytest.approx(solve(instance, seed=0).objective)
    assert result.dual_bound == pytest.approx(result.objective) and result.gap == 0
    assert sum(result.depths) == result.nodes > 1
    assert len(result.depths) == result.max_depth + 1
    assert result.fair_nodes == result.nodes + 2 * result.calls_without_branching
    assert 0 < result.lp_time + result.strong_branching_time < result.wall_time
    assert result.primal_integral is not None and 0 <= result.primal_integral <= result.wall_time
    assert result.dual_integral is not None and 0 <= result.dual_integral <= result.wall_time
    assert result.decisions is None and result.deciding_share == 0
    assert result.peak_memory > 20


def test_rules_without_strong_branching_have_fair_nodes_equal_to_nodes(instance: Path) -> None:
    for rule in ("pscost", "mostinf", "random"):
        result = solve(instance, rule=rule)
        assert result.fair_nodes == result.nodes and result.strong_branchings == 0


@pytest.mark.parametrize("rule", ["relpscost", "fullstrong", "vanillafullstrong"])
def test_calls_without_branching_are_the_calls_that_created_no_children(
    instance: Path, rule: str
) -> None:
    class Branchings(Eventhdlr):
        count = 0

        def eventinit(self) -> None:
            self.model.catchEvent(SCIP_EVENTTYPE.NODEBRANCHED, self)

        def eventexit(self) -> None:
            self.model.dropEvent(SCIP_EVENTTYPE.NODEBRANCHED, self)

        def eventexec(self, event: object) -> None:
            self.count += 1

    model = Model()
    model.hideOutput()
    model.readProblem(str(instance))
    apply_protocol(model, "gasse", 3, 60)
    prefer_rule(model, rule)
    branchings = Branchings()
    model.includeEventhdlr(branchings, "branchings", "")
    model.optimize()
    calls = sum(r["nlpcalls"] for r in module._statistics(model)["branchrules"]["plugins"].values())
    result = solve(instance, rule=rule, seed=3)
    assert result.nodes == model.getNTotalNodes()
    assert result.calls_without_branching == calls - branchings.count
    assert result.calls_cutting_off <= result.calls_without_branching
    if rule != "vanillafullstrong":
        assert result.calls_without_branching > 0


def test_the_same_seed_gives_the_same_tree_and_another_seed_another(instance: Path) -> None:
    trees = [solve(instance, rule="pscost", seed=seed).depths for seed in (1, 1, 2, 3)]
    assert trees[0] == trees[1]
    assert len(set(trees)) > 1


def test_limits_end_a_solve_and_leave_what_is_known(instance: Path) -> None:
    result = solve(instance, rule="random", node_limit=2)
    assert result.status == "totalnodelimit" and not result.finished and result.nodes == 2
    assert result.primal_integral is None and result.primal_dual_integral > 0
    assert solve(instance, time_limit=0).status == "timelimit"


def test_an_instance_that_presolving_settles_has_no_nodes(tmp_path: Path) -> None:
    path = tmp_path / "trivial.lp"
    path.write_text("Minimize\n x + y\nSubject To\n c: x + y >= 1\nBinary\n x y\nEnd\n")
    result = solve(path, rule="relpscost")
    assert (result.status, result.objective) == ("optimal", 1.0)
    assert (result.nodes, result.fair_nodes, result.depths) == (0, 0, ())


def test_an_infeasible_instance_is_finished_without_an_objective(tmp_path: Path) -> None:
    path = tmp_path / "infeasible.lp"
    path.write_text("Minimize\n x\nSubject To\n c: 2 x + 2 y = 3\nBinary\n x y\nEnd\n")
    result = solve(path)
    assert result.status == "infeasible" and result.finished and result.objective is None


def test_an_unbounded_instance_has_no_best_objective(tmp_path: Path) -> None:
    path = tmp_path / "unbounded.lp"
    path.write_text("Maximize\n x + y\nSubject To\n c: x - y <= 2\nGeneral\n x y\nEnd\n")
    solved = solve(path, time_limit=20)
    assert solved.status in ("unbounded", "inforunbd") and solved.finished
    assert solved.objective is None


def test_the_solution_file_holds_the_best_solution(instance: Path, tmp_path: Path) -> None:
    result = solve(instance, solution=tmp_path / "best.sol")
    model = Model()
    model.hideOutput()
    model.readProblem(str(instance))
    solution = model.readSolFile(str(tmp_path / "best.sol"))
    assert model.getSolObjVal(solution) == pytest.approx(result.objective)
    assert model.checkSol(solution)


def test_parameters_given_as_text_take_the_type_scip_expects() -> None:
    model = Model()
    given = {
        "limits/time": "60",
        "limits/nodes": "5",
        "branching/relpscost/degeneracyaware": "1",
        "misc/catchctrlc": "false",
        "nodeselection/childsel": "d",
        "visual/vbcfilename": "x.vbc",
    }
    set_parameters(model, given)
    assert model.getParam("limits/time") == 60.0
    assert model.getParam("limits/nodes") == 5
    assert model.getParam("misc/catchctrlc") is False
    assert model.getParam("nodeselection/childsel") == "d"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("limits/tiem", "3", "no parameter 'limits/tiem'"), ("limits/time", "soon", "cannot be set"),
     ("limits/time", "-1", "cannot be set"), ("misc/catchctrlc", "maybe", "cannot be set")],
)  # fmt: skip
def test_a_wrong_parameter_is_named(
    name: str, value: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InputError, match=message):
        set_parameters(Model(), {name: value})
    assert capfd.readouterr() == ("", "")  # SCIP's own complaints stay out of sight


def test_a_wrong_rule_or_file_is_named(instance: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no branching rule 'relpscots': it has allfullstrong"):
        solve(instance, rule="relpscots")
    with pytest.raises(InputError, match="does not exist"):
        solve(tmp_path / "nothing.lp")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(InputError, match="cannot be read"):
        solve(tmp_path / "notes.txt")
    assert {"relpscost", "pscost", "mostinf"} <= set(scip_rules())


def test_a_policy_decides_and_is_timed(instance: Path) -> None:
    def most_fractional(constraint_features, edge_index, edge_values, variable_features):  # type: ignore[no-untyped-def]
        return -(variable_features[:, 9] - 0.5).abs()

    result = solve(instance, policy=most_fractional, seed=3)
    assert result.status == "optimal"
    assert result.objective == pytest.approx(solve(instance, seed=3).objective)
    assert result.decisions and not result.fallbacks
    assert result.observation_time and result.inference_time
    assert 0 < result.deciding_share < 1
    assert result.fair_nodes == result.nodes


def test_a_policy_that_fails_leaves_its_decisions_to_scip_and_says_so(instance: Path) -> None:
    def broken(*state):  # type: ignore[no-untyped-def]
        raise ValueError("no")

    result = solve(instance, policy=broken, seed=3)
    assert result.status == "optimal"
    assert result.decisions == 0 and result.fallbacks and result.fallbacks > 0


def test_every_incumbent_is_noted_with_its_own_value(instance: Path) -> None:
    """SCIP tells of a solution before its primal bound follows: each had that of the one before."""
    model, watch, bounds = read_model(instance), module._Watch(), []

    class After(Eventhdlr):
        def eventinit(self) -> None:
            self.model.catchEvent(SCIP_EVENTTYPE.NODESOLVED, self)

        def eventexec(self, event: object) -> None:
            bounds.append((self.model.getPrimalbound(), watch.primal[-1][1]))

    model.includeEventhdlr(watch, "watch", "")
    model.includeEventhdlr(After(), "after", "")
    model.optimize()
    values = [value for _, value in watch.primal]
    assert values == sorted(values) and values[-1] == pytest.approx(model.getObjVal())
    assert bounds and all(found == pytest.approx(bound) for bound, found in bounds)


def test_a_path_with_quotes_does_not_cost_the_solve(instance: Path, tmp_path: Path) -> None:
    path = tmp_path / 'a"b\\c.lp'
    path.write_bytes(instance.read_bytes())
    assert solve(path).nodes == solve(instance).nodes
