"""Finding the instances a user means, files, folders and globs, and telling them apart."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from learn2branch.errors import InputError

FORMATS = (".lp", ".mps", ".cip")
_EXPECTED = ".lp, .mps or .cip, each also .gz"


def find_instances(patterns: Iterable[str | Path]) -> list[Path]:
    """Return the instance files that the patterns name, each once, in the order of a reader.

    A folder means all instances in it, at any depth. Raises InputError where a pattern matches
    nothing or a named file has another format.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        found.update(dict.fromkeys(_matches(str(pattern))))
    if not found:
        raise InputError("no instances were named: give files, folders or globs")
    return list(found)


def content_hash(path: Path) -> str:
    """Return what tells a file's content from another's."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def is_instance(path: Path) -> bool:
    """Tell by the name whether a file holds an instance; hidden files are not finished."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(FORMATS) and not name.startswith(".")


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        files = [file for file in path.rglob("*") if is_instance(file) and file.is_file()]
        if not files:
            raise InputError(f"no instances in {pattern}: expected {_EXPECTED}")
        return sorted(files, key=_reading_order)
    if path.exists():
        if not is_instance(path):
            raise InputError(f"{pattern} is not an instance file: expected {_EXPECTED}")
        return [path]
    files = [Path(name) for name in glob.glob(pattern, recursive=True)]
    files = [file for file in files if is_instance(file) and file.is_file()]
    if files:
        return sorted(files, key=_reading_order)
    if glob.has_magic(pattern):
        raise InputError(f"no instance matches {pattern}: expected {_EXPECTED}")
    raise InputError(f"{pattern} does not exist: expected an instance file, a folder or a glob")


def _reading_order(path: Path) -> list[tuple[int, int, str]]:
    # instance_9999 comes before instance_10000
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]
