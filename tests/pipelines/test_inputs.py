from pathlib import Path

import pytest

from learn2branch.errors import InputError
from pipelines.inputs import find_instances


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "a/instance_9999.lp", "a/instance_10000.lp", "a/manifest.json", "a/.17-instance_0001.lp",
        "b/x.mps.gz", "b/Y.MPS", "b/z.cip", "b/w.lp.gz", "b/readme.gz", "c/notes.txt",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


def test_a_folder_means_all_its_instances_in_reading_order(folder: Path) -> None:
    assert names(find_instances([folder / "a"])) == ["instance_9999.lp", "instance_10000.lp"]
    assert set(names(find_instances([folder]))) == {
        "instance_9999.lp", "instance_10000.lp", "x.mps.gz", "Y.MPS", "z.cip", "w.lp.gz",
    }  # fmt: skip


def test_globs_and_files_are_each_taken_once(folder: Path) -> None:
    found = find_instances([folder / "b" / "z.cip", f"{folder}/b/*", f"{folder}/**/*.cip"])
    assert names(found)[0] == "z.cip"
    assert sorted(names(found)) == ["Y.MPS", "w.lp.gz", "x.mps.gz", "z.cip"]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("missing.lp", "missing.lp does not exist"),
        ("*.lp", "no instance matches"),
        ("c", "no instances in"),
        ("c/notes.txt", "is not an instance file"),
    ],
)
def test_what_cannot_be_meant_is_named(folder: Path, pattern: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_instances([folder / pattern])


def test_nothing_named_is_a_mistake() -> None:
    with pytest.raises(InputError, match="no instances were named"):
        find_instances([])
