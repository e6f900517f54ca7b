import csv
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest

from learn2branch import build_model, export_policy
from learn2branch.errors import InputError
from learn2branch.policy import shipped_policies
from pipelines import machine, parallel
from pipelines.branching.evaluate import _failure, evaluate
from pipelines.branching.policies import find_choice, find_choices
from pipelines.branching.report import make_report
from pipelines.branching.results import COLUMNS, Results, read_results
from pipelines.cli import main


def write_knapsack(path: Path, seed: int) -> None:
    """Write a small maximisation that takes some branching."""
    rng = random.Random(seed)
    names = [f"x{j}" for j in range(18)]
    rows = [[rng.randint(10, 60) for _ in names] for _ in range(5)]
    terms = " + ".join(f"{rng.randint(20, 50)} {x}" for x in names)
    sums = [" + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True)) for row in rows]
    lines = [f" {total} <= {sum(row) / 3}" for total, row in zip(sums, rows, strict=True)]
    path.write_text(
        "\n".join(["Maximize", f" obj: {terms}", "Subject To", *lines, "Binary", *names, "End"])
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with instances, one of them broken, and runs of two backbones."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "mine").mkdir()
    for k in range(2):
        write_knapsack(folder / "mine" / f"knapsack_{k}.lp", k)
    (folder / "mine" / "torn.mps").write_text("NAME x\nROWS\n N")
    for backbone in ("dualattn", "bgnn"):
        model = build_model(backbone, size="small")
        export_policy(model, folder / "runs" / f"setcover-{backbone}" / "policy.pt")
    return folder


@pytest.fixture(scope="module")
def evaluated(home: Path) -> Path:
    """Return the results of two seeds, a policy and two rules on the instances."""
    policy = str(home / "runs" / "setcover-dualattn")
    path, rows = evaluate(
        instances=[home / "mine"],
        policies=[policy, "pscost", "relpscost"],
        seeds=2,
        time_limit=60,
        out=home / "results",
    )
    assert len(rows) == 3 * 2 * 3
    return path


def again(home: Path, path: Path, **changes: object) -> list[object]:
    arguments = {"time_limit": 60, "seeds": 2, "out": path.parent, **changes}
    policies = [str(home / "runs" / "setcover-dualattn"), "pscost", "relpscost"]
    return evaluate(instances=[home / "mine"], policies=policies, **arguments)[1]  # type: ignore[arg-type]


def test_without_a_family_the_one_trained_last_is_evaluated(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age, run in ((20, "setcover-dualattn"), (10, "cauctions-dualattn"), (0, "mine-dualattn")):
        policy = tmp_path / "runs" / run / "policy.pt"
        policy.parent.mkdir(parents=True)
        shutil.copy(home / "runs" / "setcover-dualattn" / "policy.pt", policy)
        os.utime(policy, (time.time() - age,) * 2)
    monkeypatch.chdir(tmp_path)
    path, rows = evaluate(
        policies=["dualattn"], preset="tiny", splits=["test"], count=1, seeds=1, time_limit=60
    )
    assert path == Path("results/cauctions-tiny/results.csv")
    assert rows[0].trial.family == "cauctions"
    assert "runs/cauctions-dualattn/" in rows[0].circumstances.policy_origin


def test_without_a_family_or_a_run_the_choices_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--problem"):
        evaluate(policies=["relpscost"], runs=tmp_path)


def test_every_instance_policy_and_seed_has_a_row_that_says_how_it_was_made(
    evaluated: Path,
) -> None:
    with evaluated.open() as file:
        cells = list(csv.DictReader(file))
    assert list(cells[0]) == COLUMNS
    assert list(cells[0])[:7] == [
        "instance", "policy", "seed", "status", "nodes", "fair_nodes", "wall_time",
    ]  # fmt: skip
    rows = read_results(evaluated)
    for row in rows:
        if "torn" in row.trial.instance:
            continue
        assert row.status == "optimal" and row.solve is not None
        assert row.solve.wall_time > 0 and row.solve.nodes == sum(row.solve.depths)
        assert (row.solve.decisions is not None) == (row.trial.policy == "setcover-dualattn")
        how = row.circumstances
        assert (how.protocol, how.time_limit, how.node_limit, how.jobs) == ("gasse", 60.0, None, 1)
        assert "SCIP" in how.versions and how.machine and how.command and how.started
    decided = [r.solve for r in rows if r.solve and r.trial.policy == "setcover-dualattn"]
    assert all(s.decisions and not s.fallbacks and s.inference_time for s in decided)


def test_a_run_that_fails_is_a_row_with_its_reason(evaluated: Path) -> None:
    torn = [row for row in read_results(evaluated) if "torn" in row.trial.instance]
    assert len(torn) == 6
    for row in torn:
        assert row.status == "failed" and "cannot be read" in row.error and row.solve is None
        assert row.time == 60.0 and not row.finished


def test_policies_take_turns_on_each_instance_and_seed(evaluated: Path) -> None:
    rows = read_results(evaluated)
    threes = [rows[i : i + 3] for i in range(0, len(rows), 3)]
    for three in threes:
        assert len({(r.trial.instance, r.trial.seed) for r in three}) == 1
        assert len({r.trial.policy for r in three}) == 3
    assert len({three[0].trial.policy for three in threes}) == 3


def test_the_same_command_again_runs_only_what_is_missing(home: Path, evaluated: Path) -> None:
    content = evaluated.read_bytes()
    assert len(again(home, evaluated)) == 18
    assert evaluated.read_bytes() == content  # nothing was missing

    # A writer killed in the middle of the last row: that run is made again, the others are kept.
    copy = home / "torn" / "results.csv"
    copy.parent.mkdir()
    copy.write_bytes(content[:-40])
    assert len(again(home, copy)) == 18
    lines = content.splitlines()
    assert copy.read_bytes().splitlines()[:-1] == lines[:-1]
    assert read_results(copy)[-1].trial == read_results(evaluated)[-1].trial


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"time_limit": 30.0}, "time limit 60.0, not 30.0"), ({"protocol": "default"}, "protocol"),
     ({"parameters": {"limits/gap": "0.5"}}, "protocol gasse, not gasse, limits/gap=0.5"),
     ({"baseline": "mostinf"}, "not among the policies"),
     ({"splits": ["test"]}, "your own instances have no splits")],
)  # fmt: skip
def test_runs_made_in_another_way_are_not_mixed_in(
    home: Path, evaluated: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        again(home, evaluated, **changes)


def test_another_policy_of_the_same_name_is_not_mixed_in(home: Path, evaluated: Path) -> None:
    run = home / "runs" / "setcover-dualattn"
    shutil.copytree(run, home / "kept")
    try:
        export_policy(build_model("dualattn", size="small"), run / "policy.pt")
        with pytest.raises(InputError, match="holds runs of setcover-dualattn with policy origin"):
            again(home, evaluated)
    finally:
        shutil.copy(home / "kept" / "policy.pt", run / "policy.pt")


def test_an_instance_that_changed_is_named(home: Path, evaluated: Path) -> None:
    file = home / "mine" / "knapsack_1.lp"
    content = file.read_bytes()
    try:
        file.write_bytes(content + b"\n")
        with pytest.raises(InputError, match=r"knapsack_1\.lp is another than .* delete its lines"):
            again(home, evaluated)
    finally:
        file.write_bytes(content)


def test_parameters_of_a_users_own_reach_scip_and_the_rows(home: Path, tmp_path: Path) -> None:
    _, rows = evaluate(
        instances=[home / "mine"],
        policies=["pscost"],
        count=1,
        seeds=1,
        parameters={"limits/totalnodes": "2", "presolving/maxrounds": 0},
        out=tmp_path,
    )
    assert [row.status for row in rows] == ["totalnodelimit"]  # one of the three instances
    described = "gasse, limits/totalnodes=2, presolving/maxrounds=0"
    assert rows[0].circumstances.protocol == described
    page = make_report(rows).page().html()
    assert "cuts at the root only" in page and "limits/totalnodes=2" in page


def test_instances_that_a_policy_was_trained_on_are_pointed_out(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = sorted((home / "mine").glob("*.lp"))
    collection = {"train": {"instances": [str(first)]}, "test": {"instances": [str(second)]}}
    provenance = {"start": {"provenance": {"collection": {"mine": collection}}}}
    policy = tmp_path / "run" / "policy.pt"
    export_policy(build_model("bgnn", size="small"), policy, provenance=provenance)
    evaluate(instances=[first, second], policies=[str(policy)], seeds=1, out=tmp_path)
    assert "run was trained on 1 of these 2 instances" in capfd.readouterr().err


def test_own_instances_need_policies_by_name(home: Path) -> None:
    with pytest.raises(InputError, match="your own instances need --policy"):
        evaluate(instances=[home / "mine"])


def test_a_table_of_another_version_or_another_writer_is_refused(
    home: Path, evaluated: Path, tmp_path: Path
) -> None:
    text = evaluated.read_text()
    (tmp_path / "results.csv").write_text(text.replace("fair_nodes", "fairer_nodes", 1))
    with pytest.raises(InputError, match="other columns"):
        read_results(tmp_path)
    (tmp_path / "results.csv").write_text(text.replace("optimal", "optimal,", 1))
    with pytest.raises(InputError, match=r"format|damaged in line"):
        read_results(tmp_path)
    with pytest.raises(InputError, match="l2b evaluate writes it"):
        read_results(home)
    with Results(tmp_path / "new.csv"), pytest.raises(InputError, match="another evaluation"):
        Results(tmp_path / "new.csv")


def test_rows_survive_being_written_and_read(evaluated: Path, tmp_path: Path) -> None:
    rows = read_results(evaluated)
    odd = replace(rows[0], trial=replace(rows[0].trial, instance='a "b",  c.lp'))
    with Results(tmp_path / "results.csv") as results:
        for row in [*rows, odd]:
            results.append(row)
    assert read_results(tmp_path) == [*rows, odd]


def test_only_an_unfinished_row_of_our_own_is_cut_off(evaluated: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "results.csv"
    foreign.write_text("city,value\nRome,1\nParis,2")
    with pytest.raises(InputError, match="other columns"):
        Results(foreign)
    assert foreign.read_text().endswith("Paris,2")
    content, ours = evaluated.read_bytes(), tmp_path / "ours.csv"
    ours.write_bytes(content[:-1])  # as an editor may leave it
    with Results(ours) as results:
        assert len(results.rows) == 18
    assert ours.read_bytes() == content
    ours.write_bytes(content[:20])  # killed while it wrote the names of the columns
    with Results(ours) as results:
        assert results.rows == []
    assert ours.read_bytes() == content[: content.index(b"\n") + 1]


def test_a_damaged_line_is_named_so_that_the_others_are_kept(
    evaluated: Path, tmp_path: Path
) -> None:
    lines = evaluated.read_text().splitlines(keepends=True)
    lines[3] = lines[3][:60] + "\n"
    (tmp_path / "results.csv").write_text("".join(lines))
    with pytest.raises(InputError, match="damaged in line 4: delete the line"):
        read_results(tmp_path)


def test_a_file_takes_no_other_instances_solved_in_another_way(
    home: Path, evaluated: Path, tmp_path: Path
) -> None:
    write_knapsack(tmp_path / "new.lp", 5)
    arguments = {"policies": ["pscost"], "seeds": 1, "out": evaluated.parent}
    content = evaluated.read_bytes()
    with pytest.raises(InputError, match=r"time limit 60\.0, not 30\.0"):
        evaluate(instances=[tmp_path / "new.lp"], time_limit=30, **arguments)  # type: ignore[arg-type]
    assert evaluated.read_bytes() == content


def test_a_run_may_have_the_name_of_a_rule(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs" / "setcover-bgnn", tmp_path / "pscost")
    labels = [choice.label for choice in find_choices([str(tmp_path / "pscost"), "pscost"])]
    assert labels == [str(tmp_path / "pscost" / "policy.pt"), "pscost"]


def test_a_crash_and_a_hang_are_told_apart() -> None:
    (crashed,) = parallel.run(os._exit, [3], timeout=60)
    (hung,) = parallel.run(time.sleep, [60], timeout=1)
    assert (_failure(crashed.error or ""), _failure(hung.error or "")) == ("crashed", "killed")


def test_a_backbone_means_the_newest_run_of_the_family(home: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    families = ("mknapsack-dualattn", "mknapsack-dualattn-2", "indset-dualattn")
    for number, name in enumerate(families):
        shutil.copytree(home / "runs" / "setcover-dualattn", runs / name)
        os.utime(runs / name / "policy.pt", (1000 + number, 1000 + number))
    found = find_choice("dualattn", "mknapsack", runs)
    assert found.file == runs / "mknapsack-dualattn-2" / "policy.pt" and found.label == "dualattn"
    assert [c.label for c in find_choices([], "mknapsack", runs)] == ["dualattn", "relpscost"]
    # A newer run of the small size is another kind of policy.
    shutil.copytree(home / "runs" / "setcover-dualattn", runs / "mknapsack-dualattn-small-3")
    assert find_choice("dualattn", "mknapsack", runs) == found
    labels = [c.label for c in find_choices([], "mknapsack", runs)]
    assert labels == ["dualattn", "dualattn-small", "relpscost"]
    both = find_choices([], "setcover", home / "runs")
    assert [c.label for c in both] == ["dualattn", "dualattn-small", "bgnn", "relpscost"]


def test_without_a_run_a_backbone_means_the_shipped_policy(tmp_path: Path) -> None:
    found = find_choices([], "setcover", tmp_path)
    assert [c.label for c in found] == ["dualattn", "dualattn-small", "bgnn", "relpscost"]
    assert found[0].file == shipped_policies()["setcover-dualattn"]
    assert found[0].origin.startswith("shipped setcover-dualattn (")


def test_what_cannot_be_found_is_named(home: Path) -> None:
    for name, family, message in (
        ("dualattn", None, "needs a family"),
        ("dualattn", "knapsack-of-ours", "train one"),
        ("relpscots", None, "there is no policy 'relpscots'.*relpscost"),
        ("nowhere/policy.pt", None, "no policy file nowhere/policy.pt"),
    ):
        with pytest.raises(InputError, match=message):
            find_choice(name, family, home / "runs")


def test_a_policy_of_another_task_is_refused(tmp_path: Path) -> None:
    export_policy(build_model("bgnn", task="element", size="small"), tmp_path / "element.pt")
    with pytest.raises(InputError, match="element task: give one trained for branching"):
        find_choice(str(tmp_path / "element.pt"))


def test_two_files_of_the_same_run_name_keep_their_paths(home: Path, tmp_path: Path) -> None:
    first = home / "runs" / "setcover-dualattn" / "policy.pt"
    second = tmp_path / "setcover-dualattn" / "policy.pt"
    second.parent.mkdir()
    shutil.copy(first, second)
    labels = [choice.label for choice in find_choices([str(first), str(second)])]
    assert labels == [str(first), str(second)]


def test_evaluating_a_family_generates_solves_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "evaluate", "--problem", "cauctions", "--preset", "tiny", "--count", "1", "--seeds", "1",
        "--policy", "pscost", "--policy", "relpscost", "--time-limit", "600", "--jobs", "2", "-q",
    ]  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "Combinatorial auction" in printed and "test" in printed and "transfer" in printed
    folder = tmp_path / "results" / "cauctions-tiny"
    rows = read_results(folder)
    assert {(row.trial.split, row.trial.policy) for row in rows} == {
        (split, policy) for split in ("test", "transfer") for policy in ("pscost", "relpscost")
    }
    assert [row for row in rows if not row.finished] == []
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_an_instance_that_cannot_be_read_costs_its_rows_and_the_exit_code(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "--policy", "pscost", "--seeds", "1", "--time-limit", "60"]
    files = [str(home / "mine" / name) for name in ("knapsack_0.lp", "torn.mps")]
    for file, code in zip(files, (0, 1), strict=True):
        with pytest.raises(SystemExit) as ended:
            main([*command, "--instances", file, "--out", str(tmp_path / str(code))])
        assert ended.value.code == code
    assert "torn.mps cannot be read by SCIP" in capsys.readouterr().out


def test_rows_tell_times_without_compiled_code_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "not compiled" not in machine.versions()
    monkeypatch.setattr("learn2branch.kernels.KERNELS", None)
    assert machine.versions().endswith(", not compiled")
