"""`results.csv`: a row per instance, policy and seed, written as it comes and never lost.

Each row also says how it was made (protocol, limits, machine, versions, command), so that a report
needs nothing else. The columns are documented in docs/evaluation.md.
"""

from __future__ import annotations

import csv
import io
import math
import os
import types
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from learn2branch.errors import InputError, WorkError
from learn2branch.runs import hold
from solver_plugins.solve import FINISHED, Solve

FILE = "results.csv"
FORMAT = 1  # of the file; raised whenever the meaning of a column changes


@dataclass(frozen=True)
class Trial:
    """What was run: the key of a row."""

    family: str  # of the instance; "" for a user's own
    split: str
    instance: str
    policy: str
    seed: int


@dataclass(frozen=True)
class Circumstances:
    """How it was run."""

    protocol: str
    time_limit: float
    node_limit: int | None
    jobs: int  # solves at the same time
    cores: int  # that the evaluation could use
    free_cores: int  # not used by others when it began
    instance_hash: str  # of the instance file's content
    policy_origin: str  # the policy file and the hash of its content, or SCIP's rule
    started: str  # UTC
    machine: str
    versions: str
    command: str


@dataclass(frozen=True)
class Row:
    """One run: what it was, what came of it, how it was made."""

    trial: Trial
    status: str  # SCIP's, or "crashed", "killed" (no answer long after the limit), "failed"
    solve: Solve | None  # None if the run crashed
    error: str  # one sentence, where there is no solve
    circumstances: Circumstances

    @property
    def finished(self) -> bool:
        """Whether the instance was settled."""
        return self.status in FINISHED

    @property
    def time(self) -> float:
        """Wall seconds; the time limit where the instance was not settled.

        NaN where a limit of nodes ended the solve: it tells nothing about time.
        """
        if self.finished and self.solve is not None:
            return self.solve.wall_time
        return math.nan if self.status == "totalnodelimit" else self.circumstances.time_limit


_PARTS: tuple[type, ...] = (Trial, Solve, Circumstances)
_TYPES: dict[str, Any] = {
    name: hint for part in _PARTS for name, hint in get_type_hints(part).items()
}
_FIRST = ("instance", "policy", "seed", "status", "nodes", "fair_nodes", "wall_time")
COLUMNS = list(dict.fromkeys([*_FIRST, *_TYPES, "error", "format"]))


class Results:
    """A `results.csv` being written; one process at a time, and what is in it stays in it."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b")
        try:
            hold(
                self._file,
                f"another evaluation is writing {self.path}: wait for it, or choose another --out",
            )
            self._repair()
            self.rows = read_results(self.path) if self.path.stat().st_size else []
        except BaseException:
            self._file.close()
            raise
        if not self.path.stat().st_size:
            self._write(COLUMNS)

    def append(self, row: Row) -> None:
        """Add a row; it is on the disk when this returns."""
        self._write(_to_cells(row))
        self.rows.append(row)

    def close(self) -> None:
        """Let others write."""
        self._file.close()

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _write(self, cells: Sequence[str]) -> None:
        try:
            self._file.write(_line(cells))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise WorkError(
                f"{self.path} could not be written ({error.strerror}): make room, then run the "
                "same command again; it goes on from the last whole row"
            ) from error

    def _repair(self) -> None:
        """Cut off a last line that a killed writer left unfinished: no cell holds a line break."""
        self._file.seek(0)
        content = self._file.read()
        header = _line(COLUMNS)
        if content.endswith(b"\n") or not (
            content.startswith(header) or header.startswith(content)
        ):
            return  # whole, or not ours
        start = content.rfind(b"\n") + 1
        cells = next(csv.reader([content[start:].decode(errors="replace")]), [])
        if start and len(cells) == len(COLUMNS) and cells[-1] == str(FORMAT):
            self._file.write(b"\n")  # an editor took it away
            self._file.flush()
        else:
            self._file.truncate(start)


def _line(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def read_results(path: Path | str) -> list[Row]:
    """Read a `results.csv`, or the one in a folder."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        raise InputError(f"there is no {path}: l2b evaluate writes it")
    try:
        lines = path.read_text().splitlines(keepends=True)
        reader = csv.DictReader(line for line in lines if line.endswith("\n"))
        found = list(reader.fieldnames or [])
        if found != COLUMNS:
            raise InputError(
                f"{path} has other columns than this version writes: report it with the version "
                "that wrote it, or evaluate again into another --out"
            )
        rows = []
        for number, cells in enumerate(reader, start=2):
            if (cells["format"] or "").isdecimal() and cells["format"] != str(FORMAT):
                raise InputError(
                    f"{path} has format {cells['format']}, this version reads {FORMAT}: evaluate "
                    "again into another --out"
                )
            try:
                if cells["format"] != str(FORMAT) or None in cells:
                    raise ValueError
                rows.append(_from_cells(cells))
            except (ValueError, TypeError, KeyError):
                raise InputError(f"{path} is damaged in line {number}: delete the line") from None
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{path} is not a table of results") from None
    return rows


def _to_cells(row: Row) -> list[str]:
    values: dict[str, Any] = {"status": row.status, "error": row.error, "format": FORMAT}
    for part in (row.trial, row.circumstances, row.solve):
        if part is not None:
            values |= {field.name: getattr(part, field.name) for field in fields(part)}
    return [_to_cell(values.get(name)) for name in COLUMNS]


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return " ".join(value.splitlines()) if isinstance(value, str) else repr(value)


def _from_cells(cells: dict[str, str]) -> Row:
    def part(kind: type) -> Any:
        return kind(**{f.name: _from_cell(cells[f.name], _TYPES[f.name]) for f in fields(kind)})

    return Row(
        part(Trial),
        cells["status"],
        part(Solve) if not cells["error"] else None,
        cells["error"],
        part(Circumstances),
    )


def _from_cell(text: str, kind: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        if not text:
            return None
        kind = next(k for k in get_args(kind) if k is not type(None))
    if get_origin(kind) is tuple:
        return tuple(map(int, text.split()))
    return kind(text)
