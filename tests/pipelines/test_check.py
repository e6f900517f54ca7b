import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from instances import FAMILIES
from instances.writing import write
from learn2branch.errors import InputError
from pipelines.check import check, describe, summarise
from pipelines.cli import main
from solver_plugins.inspection import Inspection, inspect
from solver_plugins.reading import read_model

WHOLE = (
    "Minimize\n obj: 2 x + 3 y\nSubject To\n c1: x + y >= 3\nBounds\n x <= 9\nGeneral\n x\nEnd\n"
)
POINTLESS = {
    "infeasible": WHOLE.replace("x <= 9", "x <= 1\n y <= 1"),
    "no integer variables": WHOLE.replace("General\n x\n", ""),
    "nonlinear": WHOLE.replace("Bounds", " q: [ x^2 + y^2 ] <= 30\nBounds"),
    "unbounded": WHOLE.replace("Minimize", "Maximize"),
    "solved at the root": WHOLE,
}
BROKEN = {
    "empty.lp": b"",
    "empty.mps": b"",
    "blank.cip": b" \n\n",
    "empty.lp.gz": gzip.compress(b""),
    "binary.lp": bytes(range(256)) * 9,
    "binary.mps": bytes(range(256)) * 9,
    "binary.lp.gz": bytes(range(256)) * 9,
    "cut.lp": WHOLE.encode()[:50],
    "cut.lp.gz": gzip.compress(WHOLE.encode() * 50)[:60],
    "text.lp": b"Dear solver,\nhow are you?\n",
    "text.mps": b"Dear solver,\nhow are you?\n",
    "text.cip": b"Dear solver,\nhow are you?\n",
    "nothing.lp": b"Minimize\nSubject To\nEnd\n",
}


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.lp"
    path.write_text(WHOLE)
    return path


@pytest.mark.parametrize("reason", POINTLESS)
def test_what_makes_learning_pointless_is_said(reason: str, tmp_path: Path) -> None:
    path = tmp_path / "instance.lp"
    path.write_text(POINTLESS[reason])
    inspection = inspect(path, time_limit=10)
    assert inspection.obstacle is not None and inspection.obstacle.startswith(reason)
    assert f"pointless: {reason}" in describe(inspection)


def test_an_instance_that_branches_is_worth_learning_from(tmp_path: Path) -> None:
    milp = FAMILIES["indset"].instance("tiny", "test", 0, 2)
    write(milp, tmp_path / "instance.lp")
    seen = inspect(tmp_path / "instance.lp", time_limit=60)
    assert seen.obstacle is None and seen.nodes > 1 and seen.solved
    assert seen.variables == {"binary": 80, "integer": 0, "implicit": 0, "continuous": 0}
    assert (seen.rows, seen.nonzeros) == (milp.matrix.shape[0], milp.matrix.nnz)
    assert 0 < seen.presolved_variables <= 80
    assert "possible: SCIP branches" in describe(seen)


def test_a_solve_that_is_not_finished_tells_how_far_it_came(tmp_path: Path) -> None:
    write(FAMILIES["workload"].instance("small", "test", 0, 1), tmp_path / "instance.lp")
    seen = inspect(tmp_path / "instance.lp", time_limit=0.05)
    assert seen.unfinished and seen.obstacle is None
    assert "not finished in" in describe(seen) and "longer --time-limit" in describe(seen)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_with_the_reason(name: str, tmp_path: Path, capfd) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(InputError, match=name):
        read_model(tmp_path / name)
    assert capfd.readouterr() == ("", "")  # SCIP's own complaints stay out of sight


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_model(tmp_path / "missing.lp")
    with pytest.raises(InputError, match="is a folder"):
        read_model(tmp_path)


def test_comments_may_follow_the_end_of_an_lp_file(tmp_path: Path) -> None:
    (tmp_path / "a.lp").write_text(WHOLE + "\n\\ written by hand\n\n")
    assert read_model(tmp_path / "a.lp").getNVars(False) == 2


def test_broken_files_do_not_hide_what_was_seen_of_others(whole: Path) -> None:
    (whole.parent / "broken.lp").write_bytes(b"\0\1\2")
    found = list(check([whole.parent], time_limit=10))
    failed = [one for one in found if isinstance(one, str)]
    seen = [one for one in found if not isinstance(one, str)]
    assert [Path(i.path).name for i in seen] == ["whole.lp"]
    assert len(failed) == 1 and "broken.lp is a binary file" in failed[0]
    assert summarise(seen).startswith("0 of 1 instance can be learned from; 1 solved at the root")


def test_every_file_that_cannot_be_read_is_named(whole: Path, capfd) -> None:
    for name in ("cut.lp", "empty.mps"):
        (whole.parent / name).write_bytes(BROKEN[name])
    with pytest.raises(SystemExit) as exit_info:
        main(["check", "-q", str(whole.parent)])
    out, err = capfd.readouterr()
    assert exit_info.value.code == 2 and "whole.lp" in out
    assert err.count("Error: ") == 2 and "cut.lp" in err and "empty.mps" in err


def test_what_was_checked_before_a_stop_is_told(whole: Path, capfd, monkeypatch) -> None:
    seen = inspect(whole, time_limit=10)

    def stopped(*_: object) -> Iterator[Inspection]:
        yield from (seen, seen)
        raise KeyboardInterrupt

    monkeypatch.setattr("pipelines.check.check", stopped)
    with pytest.raises(SystemExit) as exit_info:
        main(["check", str(whole)])
    out, err = capfd.readouterr()
    assert exit_info.value.code == 130 and "stopped after 2 instances" in err
    assert out.count("learning   pointless") == 2 and "0 of 2 instances can be learned" in out


def test_an_ending_that_scip_does_not_unpack_is_named(tmp_path: Path) -> None:
    (tmp_path / "A.LP.GZ").write_bytes(gzip.compress(WHOLE.encode()))
    with pytest.raises(InputError, match=r"rename it to end in \.gz"):
        read_model(tmp_path / "A.LP.GZ")
    (tmp_path / "A.LP").write_text(WHOLE)
    assert read_model(tmp_path / "A.LP").getNVars(False) == 2
    (tmp_path / "B.LP").write_text(WHOLE.replace("End", ""))
    with pytest.raises(InputError, match="does not close"):
        read_model(tmp_path / "B.LP")


@pytest.mark.parametrize("name", ["missing.lp", "empty.lp", "binary.mps", "cut.lp"])
def test_check_ends_in_one_sentence_and_exit_code_2(name: str, tmp_path: Path, capfd) -> None:
    if name in BROKEN:
        (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(SystemExit) as exit_info:
        main(["check", "-q", str(tmp_path / name)])
    out, err = capfd.readouterr()
    assert exit_info.value.code == 2
    assert out == "" and err.startswith("Error: ") and name in err and err.count("\n") == 1
