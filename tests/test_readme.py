"""Every command and script of the README, run as it stands there, in the order it stands there."""

import glob
import gzip
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()

# What makes the default test short: less of the same.
LESS = {
    "collect": ["--samples", "20", "--jobs", "2"],
    "train": ["--epochs", "1", "--batch-size", "10", "--workers", "1"],
    "evaluate": ["--count", "2", "--seeds", "1"],
    "generate": ["--count", "2"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


def as_a_shell_would(command: str) -> list[str]:
    words: list[str] = []
    for raw in re.findall(r'"[^"]*"|\S+', command):
        found = sorted(glob.glob(raw)) if not raw.startswith('"') else []
        words += found or shlex.split(raw)
    return words


def run_all(less: bool) -> None:
    for command in commands():
        if not command.startswith("l2b "):
            continue
        _, name, *arguments = as_a_shell_would(command)
        with pytest.raises(SystemExit) as end:
            main([name, *arguments, *(LESS.get(name, []) if less else [])])
        assert end.value.code == 0, command
    for script in blocks("python"):
        exec(compile(script, "README.md", "exec"), {})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the instances that the README calls yours."""
    monkeypatch.chdir(tmp_path)
    made = "generate --problem setcover --preset tiny --split valid --count 10 --format mps.gz"
    with pytest.raises(SystemExit):
        main([*made.split(), "--out", "made"])
    files = sorted(tmp_path.glob("made/**/*.mps.gz"))
    (tmp_path / "my" / "test").mkdir(parents=True)
    for number, file in enumerate(files):
        shutil.copy(file, tmp_path / "my" / ("test" if number > 7 else ""))
    (tmp_path / "mine.mps").write_bytes(gzip.decompress(files[0].read_bytes()))
    return tmp_path


def test_the_commands_are_those_that_are_run() -> None:
    others = {command for command in commands() if not command.startswith("l2b ")}
    # The first is run below, the second is the continuous integration; both install in the way
    # of the third, though editable and with the tools of the tests.
    assert others == {"make demo", "make test", "pip install -c constraints.txt ."}


def test_all_of_it_runs_with_less(home: Path) -> None:
    run_all(less=True)


@pytest.mark.slow
def test_all_of_it_runs_as_it_stands(home: Path) -> None:
    run_all(less=False)


@pytest.mark.slow
def test_make_demo_ends_with_a_report(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    done = subprocess.run(
        ["make", "demo", f"PYTHON={sys.executable}"],
        cwd=clone, check=True, capture_output=True, text=True,
    )  # fmt: skip
    report = re.findall(r"\S+report\.html", done.stdout)
    assert report and (clone / report[-1]).is_file()
    assert "relpscost" in done.stdout
