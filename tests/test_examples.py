"""The examples do what they say, as a user would run them."""

import random
import re
import runpy
import sys
from pathlib import Path

import pytest

from learn2branch import build_model, export_policy

EXAMPLES = Path(__file__).parent.parent / "examples"


def write_knapsack(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    names = [f"x{j}" for j in range(25)]
    rows = [[rng.randint(10, 60) for _ in names] for _ in range(6)]
    sums = [" + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True)) for row in rows]
    lines = ["Maximize", " + ".join(f"{rng.randint(20, 50)} {x}" for x in names), "Subject To"]
    lines += [f"{total} <= {sum(row) / 3}" for total, row in zip(sums, rows, strict=True)]
    path.write_text("\n".join([*lines, "Binary", *names, "End"]))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with an instance and an untrained policy."""
    monkeypatch.chdir(tmp_path)
    write_knapsack(tmp_path / "mine.lp", 0)
    export_policy(build_model("bgnn", size="small"), tmp_path / "policy.pt")
    return tmp_path


def run(
    name: str,
    *arguments: object,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> str:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capfd.readouterr().out


def test_every_example_is_tested() -> None:
    source = Path(__file__).read_text()
    assert all(example.name in source for example in EXAMPLES.glob("*.py"))


def test_a_policy_branches_in_a_users_script(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = (home / "mine.lp", home / "policy.pt")
    out = run("branch_in_your_script.py", *arguments, monkeypatch=monkeypatch, capfd=capfd)
    assert "optimal: objective" in out and re.search(r"[1-9]\d* decisions, 0 left to SCIP", out)


def test_a_users_script_survives_an_instance_without_a_solution(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (home / "no.lp").write_text("Minimize\n x\nSubject To\n c: x >= 2\nBinary\n x\nEnd\n")
    arguments = (home / "no.lp", home / "policy.pt")
    out = run("branch_in_your_script.py", *arguments, monkeypatch=monkeypatch, capfd=capfd)
    assert "infeasible: objective none" in out


def test_a_policy_works_beside_a_users_plugins(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = run("with_your_plugins.py", home / "policy.pt", monkeypatch=monkeypatch, capfd=capfd)
    assert "optimal: objective" in out and "solution 1:" in out
    assert re.search(r"\d+ solutions, [1-9]\d* cover cuts", out)
    found = [float(value) for value in re.findall(r"solution \d+: (\S+)", out)]
    assert found == sorted(found)  # of a maximisation
    assert f"optimal: objective {found[-1]:g}" in out
    assert re.search(r"[1-9]\d* decisions, 0 left to SCIP", out)


def test_a_function_can_be_the_policy(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = run("your_own_policy.py", home / "mine.lp", monkeypatch=monkeypatch, capfd=capfd)
    assert "optimal: objective" in out and re.search(r"[1-9]\d* decisions, 0 left to SCIP", out)


def test_a_policy_is_learned_from_a_users_own_files(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from pyscipopt import Model

    (home / "mine").mkdir()
    for k in range(6):
        write_knapsack(home / "instance.lp", k)
        model = Model()
        model.hideOutput()
        model.readProblem(str(home / "instance.lp"))
        model.writeProblem(str(home / "mine" / f"instance_{k}.mps"), verbose=False)
    arguments = ("mine", "--samples", 60, "--epochs", 2)
    out = run("learn_on_your_instances.py", *arguments, monkeypatch=monkeypatch, capfd=capfd)
    assert "train: 60 samples" in out and "accuracy on unseen instances: 0." in out
    assert (home / "runs" / "mine-bgnn-small" / "policy.pt").is_file()
