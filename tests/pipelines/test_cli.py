"""The command line as a user meets it: help, exit codes, one sentence for a mistake."""

import importlib
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipelines.cli import COMMANDS, l2b, main
from pipelines.cli.options import Duration


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    code = exit_info.value.code
    assert isinstance(code, int)
    return code


@pytest.mark.parametrize("path", [(), *commands(l2b)], ids=" ".join)
def test_help_runs_and_lists_the_common_options(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(l2b, [*path, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: {' '.join(('l2b', *path))}")


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = l2b
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def flags_of(command: click.Command) -> set[str]:
    return {flag for option in command.params for flag in option.opts}


@pytest.mark.parametrize("path", commands(l2b), ids=" ".join)
def test_each_command_has_a_worked_example_and_verbosity(path: tuple[str, ...]) -> None:
    command = command_at(path)
    if isinstance(command, click.Group):
        return
    assert f"l2b {' '.join(path)}" in (command.help or ""), "no worked example"
    assert {"-q", "-v"} <= flags_of(command)


def test_whoever_takes_a_family_takes_ones_own_instances() -> None:
    taking = {path for path in commands(l2b) if "--problem" in flags_of(command_at(path))}
    assert ("collect",) in taking and ("train",) in taking
    for path in taking - {("generate",)}:  # which makes the family's
        assert "--instances" in flags_of(command_at(path)), " ".join(path)


def test_every_listed_command_is_there() -> None:
    for name, module in COMMANDS.items():
        assert hasattr(importlib.import_module(module), name.replace("-", "_"))


def test_version() -> None:
    result = CliRunner().invoke(l2b, ["--version"], prog_name="l2b")
    assert result.exit_code == 0 and result.output.startswith("l2b, version ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate",), "--problem"),
        (("generate", "--problem", "sudoku"), "'sudoku' is not one of setcover, cauctions"),
        (("generate", "--problem", "setcover", "--count", "0"), "--count"),
        (("generate", "--problem", "setcover", "--set", "rows"), "'rows' is not NAME=VALUE"),
        (("generate", "--problem", "setcover", "--set", "rows=x"), "a whole number"),
        (("generate", "--problem", "setcover", "--set", "density=nan"), "expected a number"),
        (("evaluate", "--problem", "setcover", "--time-limit", "inf"), "is not a time such as"),
        (("evaluate", "--problem", "setcover", "--time-limit", "9999999h"), "anyone will wait"),
        (("evaluate", "--problem", "setcover", "--time-limit", "0"), "too short a time"),
        (("evaluate", "--problem", "setcover", "--set", "limits/gap"), "is not NAME=VALUE"),
        (("evaluate", "--problem", "setcover", "--set", "limits/gab=1"), "no parameter"),
        (("collect", "--problem", "setcover", "--set", "limits/gap=-1"), "cannot be set"),
        (("collect", "--problem", "setcover", "--cluster", "tcp://a:1"), "--parallel dask or ray"),
        (("collect", "--problem", "setcover", "--time-limit", "nan"), "--time-limit"),
        (("check",), "FILE"),
        (("check", "missing.lp"), "missing.lp does not exist"),
        (("nonsense",), "nonsense"),
    ],
)
def test_a_mistake_names_the_argument_and_ends_with_2(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["data", "data/below"])
def test_a_file_where_a_folder_is_needed_is_named(out: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    assert run("generate", "--problem", "setcover", "--out", str(tmp_path / out)) == 2
    err = capsys.readouterr().err
    assert str(tmp_path / "data") in err and "is a file" in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("2.5s", 2.5), ("45m", 2700.0), ("1h30m", 5400.0)]
)
def test_times_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_generate_writes_where_it_says(tmp_path: Path, capsys) -> None:
    arguments = "generate --problem setcover --preset tiny --split test --count 2 --seed 0 --jobs 2"
    assert run(*arguments.split(), "--out", str(tmp_path)) == 0
    folder = tmp_path / "setcover" / "tiny" / "test"
    assert capsys.readouterr().out == f"{folder}: 2 instances\n"
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["instance_0001.lp", "instance_0002.lp", "manifest.json"]


def test_l2b_is_a_program(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "l2b"
    result = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert "generate" in result.stdout and result.stderr == ""
