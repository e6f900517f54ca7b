"""The instance-level pipeline: sets on disk, batches, training, tables and answers for files."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pyscipopt import Model, quicksum

from instances import ParameterError
from instances.foldable import foldable_milps
from instances.random_milp import random_milps
from instances.stack import EQUAL, GREATER, LESS, Milps
from learn2branch import BipartiteGraph, build_model, export_policy, load_policy
from learn2branch.errors import InputError
from pipelines.cli import main
from pipelines.cli.instance import instance
from pipelines.instance_level.data import Recipe, generate, load
from pipelines.instance_level.evaluate import Row, evaluate, judge, table
from pipelines.instance_level.graphs import RANDOM, Groups, InstanceSet, schema
from pipelines.instance_level.predict import as_milps, predict
from pipelines.instance_level.tasks import TASKS
from pipelines.instance_level.train import train
from solver_plugins.arrays import read_arrays

SMALL = {"size": "small", "batch_size": 32}


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    """Both sets, 80 instances each."""
    folder = tmp_path_factory.mktemp("sets")
    for dataset in ("unfoldable", "foldable"):
        generate(Recipe(dataset, count=80), out=folder)
    return folder


@pytest.fixture(scope="module")
def trained(sets: Path) -> Path:
    """A run folder of the objective task, hardly trained."""
    out = sets / "objective"
    return train("unfoldable", "objective", epochs=4, data=sets, out=out, **SMALL)[0]


def write(milps: Milps, index: int, path: Path, change=None) -> Path:
    """Write one instance of a stack as a file, by SCIP."""
    model = Model()
    model.hideOutput()
    x = [
        model.addVar(
            name=f"x{j}", vtype="I" if milps.is_integer[index, j] else "C",
            lb=milps.lower[index, j], ub=milps.upper[index, j], obj=milps.objective[index, j],
        )
        for j in range(milps.variables)
    ]  # fmt: skip
    for i in range(milps.constraints):
        of_row = np.flatnonzero(milps.row[index] == i)
        activity = quicksum(milps.value[index, k] * x[milps.column[index, k]] for k in of_row)
        rhs, sense = milps.rhs[index, i], milps.sense[index, i]
        row = {LESS: activity <= rhs, EQUAL: activity == rhs, GREATER: activity >= rhs}[int(sense)]
        model.addCons(row, name=f"c{i}")
    if change:
        change(model, x)
    model.writeProblem(str(path), verbose=False)
    return path


# The sets on disk


def test_a_set_on_disk_is_the_one_that_was_made(sets: Path) -> None:
    data = load(sets / "unfoldable.npz")
    made = random_milps(range(80), seed=0)
    for name, array in made.arrays().items():
        np.testing.assert_array_equal(data.milps.arrays()[name], array)
    assert data.recipe == Recipe("unfoldable", 80, 0, 20, 6, 60)
    assert (np.isnan(data.value) == ~data.feasible).all()


def test_foldable_twins_are_labelled_feasible_and_infeasible_in_turn(sets: Path) -> None:
    data = load(sets / "foldable.npz")
    assert data.feasible.tolist() == [True, False] * 40
    assert (data.value[::2] == 0).all()


def test_the_halves_are_apart_and_keep_pairs_together(sets: Path) -> None:
    data = load(sets / "foldable.npz")
    train_half, test_half = data.half("train"), data.half("test")
    assert sorted([*train_half, *test_half]) == list(range(80))
    assert set(train_half // 2).isdisjoint(test_half // 2)


def test_processes_and_interruptions_do_not_change_a_set(sets: Path, tmp_path: Path) -> None:
    recipe = Recipe("foldable", count=120)
    generate(recipe, jobs=2, out=tmp_path)
    again = tmp_path / "again"
    # What an interrupted run leaves: some parts, written whole.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipelines.instance_level.data.shutil.rmtree", lambda folder: None)
        generate(recipe, out=again)
    next(again.glob("*.parts/0000050.npz")).unlink()
    (again / "foldable.npz").unlink()
    generate(recipe, out=again)
    one, other = load(tmp_path / "foldable.npz"), load(again / "foldable.npz")
    for name, array in one.milps.arrays().items():
        np.testing.assert_array_equal(array, other.milps.arrays()[name])
    np.testing.assert_array_equal(one.feasible, other.feasible)
    assert not list(again.glob("*.parts"))


def test_a_file_with_another_set_is_not_overwritten(sets: Path) -> None:
    before = (sets / "unfoldable.npz").read_bytes()
    with pytest.raises(InputError, match=r"unfoldable\.npz holds 80 .* seed 0: delete it"):
        generate(Recipe("unfoldable", count=80, seed=1), out=sets)
    assert (sets / "unfoldable.npz").read_bytes() == before


def test_a_set_holds_numbers_only(sets: Path) -> None:
    with np.load(sets / "unfoldable.npz", allow_pickle=False) as file:
        assert json.loads(str(file["recipe"]))["seed"] == 0
        assert all(file[name].dtype != object for name in file.files)


@pytest.mark.parametrize("content", [b"", b"not a set", None])
def test_what_is_no_set_is_refused_by_name(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "foldable.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"foldable\.npz"):
        load(path)


def without(arrays: dict, name: str) -> dict:
    return {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: without(arrays, "feasible"),
        lambda arrays: without(arrays, "rhs"),
        lambda arrays: {**arrays, "more": arrays["rhs"]},
        lambda arrays: {**arrays, "recipe": np.array('{"count": 80}')},
        lambda arrays: {**arrays, "recipe": np.array("[]")},
        lambda arrays: {**arrays, "feasible": arrays["feasible"][:7]},
    ],
)
def test_a_set_that_was_altered_is_refused_by_name(sets: Path, tmp_path: Path, change) -> None:
    with np.load(sets / "foldable.npz") as file:
        np.savez(tmp_path / "foldable.npz", **change(dict(file)))
    with pytest.raises(InputError, match=r"foldable\.npz is not a set of labelled instances: "):
        load(tmp_path / "foldable.npz")


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_a_damaged_set_is_refused_by_name(sets: Path, tmp_path: Path, place: float) -> None:
    """A copy that was cut off, or a disk that lost some bytes, ended in an internal error."""
    path, whole = tmp_path / "unfoldable.npz", (sets / "unfoldable.npz").read_bytes()
    cut = int(place * len(whole))
    for content in (whole[:cut], whole[:cut] + b"lost" * 9 + whole[cut + 36 :]):
        path.write_bytes(content)
        with pytest.raises(
            InputError, match=r"unfoldable\.npz cannot be read .*: if it is damaged"
        ):
            load(path)


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe("unfoldable", nonzeros=121),
        Recipe("unfoldable", count=3),
        Recipe("unfoldable", variables=0),
        Recipe("foldable", count=6),
        Recipe("foldable", constraints=8),
        Recipe("foldable", nonzeros=13),
    ],
)
def test_impossible_recipes_are_refused(recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ParameterError):
        generate(recipe, out=tmp_path)
    assert not list(tmp_path.iterdir())


# Graphs


@pytest.mark.parametrize("random", RANDOM)
def test_a_batch_by_arithmetic_is_the_batch_of_its_graphs(random: str) -> None:
    milps = foldable_milps(range(8), seed=0)
    instances = InstanceSet(milps, np.arange(8.0), random=random)
    batch = instances.batch([5, 2, 2])
    assert len(batch) == 3 and batch.targets.tolist() == [5, 2, 2]
    assert batch.graph.variable_features.shape == (60, len(schema(random).variable))
    assert batch.graph.constraint_features.shape == (18, len(schema(random).constraint))
    one_by_one = BipartiteGraph.batch([instances.batch([k]).graph for k in (5, 2, 2)])
    for name in ("edge_index", "edge_values", "constraint_ptr", "variable_ptr"):
        assert torch.equal(getattr(batch.graph, name), getattr(one_by_one, name)), name
    if random != "redrawn":
        assert torch.equal(batch.graph.variable_features, one_by_one.variable_features)
        assert torch.equal(batch.graph.constraint_features, one_by_one.constraint_features)


def test_features_are_those_of_the_paper() -> None:
    milps = random_milps(range(3), seed=0)
    graph = InstanceSet(milps, np.zeros(3)).batch([1]).graph
    assert schema("none").variable == ("objective", "is_integer", "lower_bound", "upper_bound")
    expected = [milps.objective[1], milps.is_integer[1], milps.lower[1], milps.upper[1]]
    np.testing.assert_allclose(graph.variable_features.T, np.array(expected), rtol=1e-6)
    assert schema("none").constraint == ("right_hand_side", "sense")
    np.testing.assert_allclose(graph.constraint_features[:, 0], milps.rhs[1], rtol=1e-6)
    assert graph.constraint_features[:, 1].tolist() == milps.sense[1].tolist()
    dense = torch.zeros(6, 20)
    dense[tuple(graph.edge_index)] = graph.edge_values
    expected = np.zeros((6, 20))
    expected[milps.row[1], milps.column[1]] = milps.value[1]
    np.testing.assert_allclose(dense, expected, rtol=1e-6)


def random_column(instances: InstanceSet, positions: list[int]) -> torch.Tensor:
    return instances.batch(positions).graph.variable_features[:, -1].view(len(positions), -1)


def test_each_instance_keeps_its_random_numbers_when_they_are_its_own() -> None:
    instances = InstanceSet(foldable_milps(range(6), seed=0), np.zeros(6), random="instance")
    once, again = random_column(instances, [0, 1]), random_column(instances, [1, 0])
    assert torch.equal(once, again.flip(0))
    assert not torch.equal(once[0], once[1])
    half = instances.subset(np.arange(3, 6))
    assert torch.equal(random_column(half, [1]), random_column(instances, [4]))


def test_random_numbers_by_position_are_the_same_in_all_instances() -> None:
    instances = InstanceSet(foldable_milps(range(6), seed=0), np.zeros(6), random="position")
    column = random_column(instances, [0, 3, 5])
    assert torch.equal(column[0], column[1]) and torch.equal(column[0], column[2])
    assert len(set(column[0].tolist())) == 20


def test_redrawn_numbers_change_with_the_order_of_an_epoch_and_repeat_with_the_seed() -> None:
    milps = foldable_milps(range(6), seed=0)
    instances = InstanceSet(milps, np.zeros(6), random="redrawn")
    twin = InstanceSet(milps, np.zeros(6), random="redrawn")
    other = InstanceSet(milps, np.zeros(6), random="redrawn", seed=1)
    once = random_column(instances, [0, 1, 2])
    assert torch.equal(once, random_column(twin, [0, 1, 2]))
    assert not torch.equal(once[0], random_column(instances, [0, 2, 1])[0])
    assert not torch.equal(once, random_column(other, [0, 1, 2]))
    assert once.min() >= 0 and once.max() < 1


def test_groups_stay_together_and_go_round_the_set() -> None:
    instances = InstanceSet(foldable_milps(range(6), seed=0), np.arange(6.0))
    groups = Groups(instances, size=2, passes=3)
    assert len(groups) == 9
    assert groups.batch([1, 5, 6]).targets.tolist() == [2, 3, 4, 5, 0, 1]


def test_models_answer_for_thousands_of_graphs_as_for_each_alone() -> None:
    instances = InstanceSet(random_milps(range(1500), seed=0), np.zeros(1500))
    for backbone in ("dualattn", "bgnn"):
        model = build_model(backbone, task="instance", size="small").eval()
        with torch.no_grad():
            together = model(instances.batch(range(1500)).graph)
            alone = torch.cat([model(instances.batch([k]).graph) for k in (0, 700, 1499)])
        assert together.shape == (1500,)
        torch.testing.assert_close(together[[0, 700, 1499]], alone, rtol=1e-4, atol=1e-5)


def test_without_random_features_no_model_can_tell_foldable_twins_apart() -> None:
    instances = InstanceSet(foldable_milps(range(40), seed=0), np.zeros(40))
    for backbone in ("dualattn", "bgnn"):
        model = build_model(backbone, task="instance", size="small").eval()
        with torch.no_grad():
            outputs = model(instances.batch(range(40)).graph).view(-1, 2)
        torch.testing.assert_close(outputs[:, 0], outputs[:, 1], rtol=1e-4, atol=1e-5)


# Tasks


def test_a_feasibility_loss_that_counts_as_solved_has_no_wrong_answer() -> None:
    task = TASKS["feasibility"]
    logits = torch.full((100,), 30.0)
    logits[0] = -0.0001  # one instance just wrong, all others as right as can be
    loss = task.losses(logits, torch.ones(100)).mean()
    assert task.metrics(logits, torch.ones(100)).sum() == 1
    assert loss >= task.solved_below(100) == pytest.approx(math.log(2) / 100)


def test_baselines_are_the_majority_class_and_the_mean() -> None:
    seen, asked = np.array([1.0, 1, 0]), np.array([0.0, 1, 0, 0])
    assert TASKS["feasibility"].baseline(seen, asked) == 0.75
    assert TASKS["objective"].baseline(seen, asked) == pytest.approx(((asked - 2 / 3) ** 2).mean())


def test_the_objective_task_has_feasible_instances_only(sets: Path) -> None:
    data = load(sets / "unfoldable.npz")
    for half in ("train", "test"):
        instances = TASKS["objective"].half(data, half)
        assert len(instances) == data.feasible[data.half(half)].sum() < 40
        assert torch.isfinite(instances.targets).all()


# Training and tables


def test_on_the_foldable_set_the_mean_value_is_always_right(sets: Path, tmp_path: Path) -> None:
    """Every optimal value there is 0: a model learns to say 0, and has learned nothing else."""
    folder, _ = train(
        "foldable", "objective", backbone="bgnn", epochs=50, data=sets, out=tmp_path, **SMALL
    )
    row = judge(folder, data=sets)
    assert row.train_baseline == row.test_baseline == 0
    assert 0 < row.train < 1e-3 and 0 < row.test < 1e-3


def test_a_model_can_learn_its_training_half_by_heart(sets: Path, tmp_path: Path) -> None:
    """As in the paper; the test half shows what such a figure is worth."""
    folder, result = train(
        "unfoldable", "feasibility", backbone="bgnn", epochs=300, lr=3e-3, data=sets,
        out=tmp_path / "run", **SMALL,
    )  # fmt: skip
    row = judge(folder, data=sets)
    assert result.stopped == "solved"
    assert row.train == 0 < row.test


@pytest.mark.slow
def test_names_of_constraints_give_foldable_twins_away_until_they_are_renumbered(
    tmp_path: Path,
) -> None:
    """The published random feature is a name; a low test error with it says little."""
    generate(Recipe("foldable", count=800), jobs=2, out=tmp_path)
    folder, _ = train(
        "foldable", "feasibility", backbone="bgnn", random="position", epochs=120, lr=1e-3,
        data=tmp_path, out=tmp_path / "run",
    )  # fmt: skip
    row = judge(folder, data=tmp_path)
    assert row.test < 0.05
    assert row.test_renumbered > 0.15


def test_a_run_that_was_stopped_ends_like_one_that_was_not(sets: Path, tmp_path: Path) -> None:
    for name, steps in (("straight", (20,)), ("resumed", (10, 20))):
        for epochs in steps:
            train("foldable", "feasibility", random="redrawn", epochs=epochs, data=sets,
                  backbone="bgnn", out=tmp_path / name, **SMALL)  # fmt: skip
    rows = [judge(tmp_path / name, data=sets) for name in ("straight", "resumed")]
    assert rows[0].epochs == rows[1].epochs == 20
    losses = []
    for name in ("straight", "resumed"):
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["train/loss"] for line in lines])
    assert losses[0] == losses[1]


def test_a_learning_rate_of_zero_is_not_the_usual_one(sets: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lr must be positive, not 0"):
        train("unfoldable", "objective", epochs=1, lr=0.0, data=sets, out=tmp_path / "r", **SMALL)
    assert not (tmp_path / "r").exists()


def test_a_run_folder_of_another_task_is_not_continued(trained: Path, sets: Path) -> None:
    with pytest.raises(InputError, match="holds a run with task = objective"):
        train("unfoldable", "feasibility", epochs=4, data=sets, out=trained, **SMALL)


def test_judging_refuses_a_set_with_other_halves(trained: Path, tmp_path: Path) -> None:
    generate(Recipe("unfoldable", count=20), out=tmp_path)
    with pytest.raises(InputError, match="its halves are others"):
        judge(trained, data=tmp_path)


def test_judging_without_random_numbers_does_not_depend_on_the_numbering(
    trained: Path, sets: Path
) -> None:
    row = judge(trained, data=sets)
    assert row.test == pytest.approx(row.test_renumbered, rel=1e-3)
    assert row.test != row.train


def test_a_table_has_means_and_deviations_over_seeds_beside_the_paper() -> None:
    common = ("foldable", "feasibility", "bgnn", "2x64", "instance")
    rows = [
        Row(*common, seed, 100, 1.0, "epochs", 1000, 1000, 0.0, test, 0.5, 0.5, 0.5)
        for seed, test in enumerate((0.4, 0.5, 0.6))
    ]
    line = table(rows).splitlines()[-1]
    assert "50.0 % ± 10.0 %" in line and "6.0 %" in line and "| 3 |" in line


def test_evaluate_writes_a_row_a_run(trained: Path, sets: Path, tmp_path: Path) -> None:
    path, rows = evaluate([trained, trained], data=sets, out=tmp_path)
    lines = path.read_text().splitlines()
    assert len(lines) == 3 and lines[0].startswith("dataset,task,backbone")
    assert rows[0].train_instances + rows[0].test_instances < 80


# Files of a user


def test_a_file_gets_the_answer_of_its_arrays(trained: Path, sets: Path, tmp_path: Path) -> None:
    milps = load(sets / "unfoldable.npz").milps
    policy = load_policy(trained / "policy.pt")
    for index, ending in ((3, "mps"), (5, "lp"), (40, "mps")):
        path = write(milps, index, tmp_path / f"mine.{ending}")
        # SCIP numbers variables by their types, but each keeps its features.
        read = as_milps(read_arrays(path))
        for name in ("objective", "lower", "upper", "rhs", "sense", "value"):
            own = np.sort(milps.arrays()[name][index])
            np.testing.assert_allclose(np.sort(read.arrays()[name][0]), own, rtol=1e-9)
        graph = InstanceSet(milps, np.zeros(80)).batch([index]).graph
        (answer,) = predict(trained / "policy.pt", [path])
        assert answer.refusal is None
        assert answer.value == pytest.approx(float(policy(*graph.tensors())), abs=1e-5)


def test_maximising_the_negated_objective_negates_the_answer(
    trained: Path, sets: Path, tmp_path: Path
) -> None:
    milps = load(sets / "unfoldable.npz").milps

    def turned_round(model: Model, x: list) -> None:
        objective = quicksum(-c * v for c, v in zip(milps.objective[0], x, strict=True)) + 7
        model.setObjective(objective, "maximize")

    plain = write(milps, 0, tmp_path / "plain.mps")
    turned = write(milps, 0, tmp_path / "turned.lp", turned_round)
    one, other = predict(trained / "policy.pt", [plain, turned])
    assert other.value == pytest.approx(7 - one.value, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model, x: model.addVar("extra", lb=0, ub=1), "21 variables and 6 constraints"),
        (lambda model, x: model.addCons(x[0] <= 1), "20 variables and 7 constraints"),
        (lambda model, x: model.chgVarUb(x[4], None), "variable x4 has no upper bound"),
        (lambda model, x: model.chgVarLb(x[2], None), "variable x2 has no lower bound"),
        (lambda model, x: _two_sides(model), "constraint 1 has two sides"),
        (lambda model, x: model.addCons(x[0] * x[1] <= 1), "not a mixed-integer linear program"),
    ],
)
def test_what_the_model_was_not_made_for_is_refused(
    trained: Path, sets: Path, tmp_path: Path, change, said: str
) -> None:
    milps = load(sets / "unfoldable.npz").milps
    path = write(milps, 0, tmp_path / "odd.cip", change)
    (answer,) = predict(trained / "policy.pt", [path])
    assert answer.refusal is not None and said in answer.refusal


def _two_sides(model: Model) -> None:
    row = model.getConss()[0]
    right = model.getRhs(row)
    if abs(right) > 1e19:
        right = model.getLhs(row) + 1
    model.chgRhs(row, right)
    model.chgLhs(row, right - 1)


def test_a_model_of_foldable_instances_refuses_what_it_never_saw(
    sets: Path, tmp_path: Path
) -> None:
    folder, _ = train("foldable", "feasibility", epochs=2, data=sets, out=tmp_path / "r", **SMALL)
    own = write(load(sets / "foldable.npz").milps, 0, tmp_path / "own.mps")
    strange = write(load(sets / "unfoldable.npz").milps, 0, tmp_path / "strange.mps")
    answers = list(predict(folder / "policy.pt", [own, strange]))
    assert answers[0].refusal is None and 0 < answers[0].value < 1
    assert answers[1].refusal is not None and "objective is not always 0" in answers[1].refusal


def test_a_model_that_knows_numbers_of_nodes_has_no_answer_for_files(
    sets: Path, tmp_path: Path
) -> None:
    folder, _ = train(
        "foldable", "feasibility", random="position", epochs=1, data=sets, out=tmp_path, **SMALL
    )
    with pytest.raises(InputError, match="--random position"):
        list(predict(folder / "policy.pt", [tmp_path / "mine.mps"]))


def test_a_branching_policy_is_no_model_of_instances(tmp_path: Path, sets: Path) -> None:
    path = export_policy(build_model("bgnn", task="state", size="small"), tmp_path / "policy.pt")
    with pytest.raises(InputError, match="is a policy for the state task"):
        list(predict(path, [tmp_path / "mine.mps"]))


# The command line


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main([str(argument) for argument in ("instance", *arguments)])
    return int(exit_.value.code or 0)


def test_the_command_line_goes_from_nothing_to_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("generate", "--dataset", "unfoldable", "--variables", 8, "--constraints", 4,
               "--nonzeros", 12, "--count", 40, "--jobs", 1, "-q") == 0  # fmt: skip
    out = capsys.readouterr().out
    assert "40 unfoldable instances of 4 x 8 with 12 non-zeros, seed 0" in out
    assert "of them bounded" in out
    assert run("train", "--size", "small", "--layers", 1, "--epochs", 3, "-q") == 0
    assert "error_rate" in capsys.readouterr().out
    assert run("evaluate", "-q") == 0
    assert "| unfoldable | feasibility | none | dualattn 1x32 | 1 |" in capsys.readouterr().out
    milps = load(tmp_path / "data/instance/unfoldable.npz").milps
    write(milps, 0, tmp_path / "mine.mps")
    write(random_milps(range(1), seed=0), 0, tmp_path / "large.mps")
    model = "runs/instance-unfoldable-feasibility-dualattn-none-0"
    assert run("predict", model, "mine.mps") == 0
    assert "mine.mps: " in capsys.readouterr().out
    assert run("predict", model, "large.mps", "mine.mps", "absent.mps") == 2
    said = capsys.readouterr()
    assert "mine.mps: " in said.out
    assert "large.mps: it has 20 variables and 6 constraints" in said.err
    assert "absent.mps" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "--nonzeros", "121", "--dataset", "unfoldable"),
        ("generate", "--constraints", "7", "--dataset", "foldable"),
        ("generate", "--count", "2", "--dataset", "foldable"),
        ("train",),
        ("evaluate",),
        ("evaluate", "runs/none"),
        ("predict", "none.pt", "mine.mps"),
        ("train", "--lr", "-1"),
    ],
)
def test_mistakes_end_in_one_sentence(
    arguments: tuple, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("Error: ") and len(said.splitlines()) == 1


@pytest.mark.parametrize("command", ["generate", "train", "evaluate", "predict"])
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(instance, [command, "--help"])
    assert result.exit_code == 0 and f"l2b instance {command}" in result.output
