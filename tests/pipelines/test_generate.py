import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instances import ParameterError
from learn2branch.errors import InputError
from pipelines.generate import generate

TINY = {"preset": "tiny", "split": "test"}


def contents(paths: list[Path]) -> list[bytes]:
    return [path.read_bytes() for path in paths]


def test_same_bytes_serially_and_with_four_processes(tmp_path: Path) -> None:
    serial = generate("setcover", **TINY, count=9, jobs=1, out=tmp_path / "serial")
    parallel = generate("setcover", **TINY, count=9, jobs=4, out=tmp_path / "parallel")
    assert contents(serial) == contents(parallel)
    assert len(set(contents(serial))) == 9


def test_same_bytes_whatever_the_count_and_the_other_splits(tmp_path: Path) -> None:
    few = generate("cauctions", **TINY, count=2, out=tmp_path / "few")
    more = generate("cauctions", preset="tiny", count=4, out=tmp_path / "more")
    assert few[0].relative_to(tmp_path / "few") == Path("cauctions/tiny/test/instance_0001.lp")
    assert contents(few) == contents([p for p in more if p.parent.name == "test"][:2])
    assert {path.parent.name for path in more} == {"train", "valid", "test", "transfer"}


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    first = generate("indset", **TINY, count=3, out=tmp_path)
    written = contents(first)
    first[1].unlink()
    stamps = [first[0].stat().st_mtime_ns, first[2].stat().st_mtime_ns]
    again = generate("indset", **TINY, count=4, out=tmp_path)
    assert contents(again)[:3] == written and len(again) == 4
    assert [again[0].stat().st_mtime_ns, again[2].stat().st_mtime_ns] == stamps


def test_parameters_and_seed_stand_beside_the_instances(tmp_path: Path) -> None:
    paths = generate("setcover", **TINY, count=1, seed=7, out=tmp_path, parameters={"rows": "90"})
    manifest = json.loads((paths[0].parent / "manifest.json").read_text())
    assert manifest["seed"] == 7 and manifest["family"] == "setcover"
    assert manifest["parameters"]["rows"] == 90 and manifest["parameters"]["columns"] == 250


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"parameters": {"columns": 260}}, "columns=250, not columns=260"),
        ({"file_format": "mps"}, "file_format lp, not mps"),
    ],
)
def test_other_instances_in_the_same_folder_are_refused(
    tmp_path: Path, change: dict, words: str
) -> None:
    generate("setcover", **TINY, count=1, out=tmp_path)
    with pytest.raises(InputError, match=words):
        generate("setcover", **TINY, count=1, out=tmp_path, **change)


def test_a_folder_of_somebody_elses_instances_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "setcover" / "tiny" / "test"
    folder.mkdir(parents=True)
    (folder / "instance_0001.lp").write_text("mine")
    with pytest.raises(InputError, match=r"no manifest\.json"):
        generate("setcover", **TINY, count=1, out=tmp_path)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="is not a manifest"):
        generate("setcover", **TINY, count=1, out=tmp_path)


def test_a_users_mistakes_are_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="sudoku is not a family"):
        generate("sudoku", out=tmp_path)
    with pytest.raises(ParameterError, match="density"):
        generate("setcover", **TINY, out=tmp_path, parameters={"density": 0.0001})
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_leaves_no_half_written_instance(tmp_path: Path) -> None:
    code = (
        "from pipelines.generate import generate;"
        f"generate('setcover', 'paper', 'test', 400, out={str(tmp_path)!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    folder = tmp_path / "setcover" / "paper" / "test"
    deadline = time.monotonic() + 120
    while len(list(folder.glob("instance_*.lp"))) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    made = sorted(folder.glob("instance_*.lp"))
    assert 5 <= len(made) < 400
    fresh = generate("setcover", "paper", "test", len(made), out=tmp_path / "fresh")
    assert contents(made) == contents(fresh)


def test_what_a_killed_run_left_is_swept_away_later(tmp_path: Path) -> None:
    paths = generate("setcover", **TINY, count=1, out=tmp_path)
    old, new = (paths[0].parent / f".{pid}-instance_0002.lp" for pid in (1, 2))
    for part in (old, new):
        part.write_text("half")
    os.utime(old, (time.time() - 7200,) * 2)
    generate("setcover", **TINY, count=1, out=tmp_path)
    assert not old.exists() and new.exists()
