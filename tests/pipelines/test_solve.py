import random
import re
from pathlib import Path

import pytest

from learn2branch import build_model, export_policy
from learn2branch.errors import InputError
from pipelines.branching.models import describe_policy, model_table
from pipelines.branching.solve import solve_file
from pipelines.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an instance and an untrained policy."""
    folder = tmp_path_factory.mktemp("solve")
    rng = random.Random(0)
    names = [f"x{j}" for j in range(25)]
    rows = [[rng.randint(10, 60) for _ in names] for _ in range(6)]
    terms = " + ".join(f"{rng.randint(20, 50)} {x}" for x in names)
    lines = ["Maximize", f" obj: {terms}", "Subject To"]
    for row in rows:
        terms = " + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True))
        lines.append(f" {terms} <= {sum(row) // 3}")
    (folder / "mine.lp").write_text("\n".join([*lines, "Binary", *names, "End"]))
    model = build_model("bgnn", size="small")
    provenance = {
        "family": "setcover",
        "instances": {"rows": 400, "columns": 750, "density": 0.05, "max_cost": 100},
        "samples": {"train": 12},
        "test": {"policy": {"acc@1": 0.5}},
    }
    export_policy(model, folder / "mine" / "policy.pt", provenance=provenance)
    return folder


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_solving_ends_with_a_line_that_says_all_and_writes_the_solution(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, solution = folder / "mine.lp", folder / "best.sol"
    assert run("solve", file, "--policy", folder / "mine", "--solution", solution) == 0
    out = capfd.readouterr().out
    assert re.fullmatch(
        rf"{re.escape(str(file))} with mine: optimal, objective \d+, \d+ nodes, [\d.]+ s, "
        r"\d+% of it deciding \(\d+ decisions, 0 left to SCIP\)\n",
        out,
    )
    objective = re.search(r"objective (\d+)", out)
    assert objective and solution.read_text().split()[:3] == ["objective", "value:", objective[1]]


def test_comparing_shows_scips_default_next_to_the_policy(folder: Path) -> None:
    solves = solve_file(folder / "mine.lp", str(folder / "mine" / "policy.pt"), compare=True)
    assert [label for label, _ in solves.solves] == ["mine", "relpscost"]
    assert not solves.disagree and not solves.interrupted
    table = solves.lines()[0].splitlines()
    assert table[1].split()[:3] == ["policy", "status", "objective"]
    assert table[3].split()[:2] == ["mine", "optimal"]
    assert table[4].split()[:2] == ["relpscost", "optimal"]
    # There is nothing to compare SCIP's default with but itself.
    assert len(solve_file(folder / "mine.lp", "relpscost", compare=True).solves) == 1


def test_scips_log_and_parameters_are_passed_on(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = folder / "mine.lp"
    assert run("solve", file, "--policy", "pscost", "--log", "--set", "limits/nodes=1") == 0
    out = capfd.readouterr().out
    assert "presolving" in out and re.search(r"with pscost: nodelimit, objective \d+, gap", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--policy", "mine.pt"], "no policy file mine.pt"),
     (["--policy", "pscost", "--set", "limits/tiem=3"], "no parameter 'limits/tiem'"),
     (["--policy", "pscost", "--set", "limits/time"], "not NAME=VALUE"),
     (["--policy", "pscost", "--solution", "nowhere/x.sol"], "there is no folder for it"),
     (["--policy", "dualattn"], "dualattn needs a family")],
)  # fmt: skip
def test_a_users_mistake_is_one_sentence_and_code_2(
    folder: Path,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("learn2branch.policy.shipped_policies", dict)
    assert run("solve", folder / "mine.lp", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_file_that_is_no_policy_is_refused(folder: Path) -> None:
    (folder / "fake.pt").write_text("not a policy")
    with pytest.raises(InputError, match="not a policy file"):
        solve_file(folder / "mine.lp", str(folder / "fake.pt"))


def test_models_tells_what_a_policy_file_says_of_itself(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "mine" / "policy.pt"
    told = describe_policy(path)
    assert told["config"]["backbone"] == "bgnn" and "normaliser" not in told
    monkeypatch.setattr("pipelines.branching.models.shipped_policies", lambda: {"mine-bgnn": path})
    assert model_table().rows[0][:5] == [
        "mine-bgnn",
        "setcover",
        "400 rows, 750 columns",
        "bgnn",
        "12",
    ]
    assert run("models") == 0
    assert re.search(r"mine-bgnn +setcover +400 rows.* +12 +0\.500 +–", capsys.readouterr().out)
    monkeypatch.setattr("pipelines.branching.models.shipped_policies", dict)
    assert run("models") == 0
    assert "ships no policies" in capsys.readouterr().out
