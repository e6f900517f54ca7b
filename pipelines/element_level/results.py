"""`results.csv` of searches: a row per instance, method, model and seed, with all its incumbents.

`accuracy.json` beside it holds how right each model's predictions are on the same instances.
"""

from __future__ import annotations

import csv
import io
import json
import types
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from learn2branch.errors import InputError
from learn2branch.metrics import Confusion
from learn2branch.runs import replace_file
from pipelines.element_level.predict import Accuracy

FILE, ACCURACY = "results.csv", "accuracy.json"

Key = tuple[str, str, str, int, int]  # instance, method, backbone, training seed, seed


@dataclass(frozen=True)
class Row:
    """One search. Times are wall seconds since it began, prediction included.

    Columns with a default came later: files of older versions lack them, and are still read.
    """

    instance: str
    method: str  # solver, pas or apollo
    backbone: str  # of the model; "" for the solver alone
    training_seed: int  # of the model
    seed: int  # of the solver
    status: str  # optimal, infeasible, limit, interrupted; failed if there is an error
    objective: float | None  # of the best solution; None without one
    best_known: float | None  # of the reference run
    maximise: bool
    seconds: float
    prediction_seconds: float  # reading, features and inference, all within `seconds`
    times: tuple[float, ...]  # of the incumbents
    objectives: tuple[float, ...]  # of the incumbents
    phases: str  # what the time went to
    rejected: int  # solutions that the instance did not accept
    time_limit: float
    solver: str
    model: str  # file and the hash of its content
    jobs: int
    started: str
    machine: str
    versions: str
    command: str
    error: str
    instance_hash: str = ""  # of the instance file's content
    regions: str = ""  # k0, k1 and delta of each trust region, as asked for
    reference_seconds: float | None = None  # the time limit of the reference run

    @property
    def key(self) -> Key:
        """What was run; no two rows share it."""
        return self.instance, self.method, self.backbone, self.training_seed, self.seed

    @property
    def label(self) -> str:
        """The method and the backbone, as tables name them."""
        return self.solver if self.method == "solver" else f"{self.method}-{self.backbone}"


_TYPES = get_type_hints(Row)
COLUMNS = [field.name for field in fields(Row)]
_LATER = [field.name for field in fields(Row) if field.default is not MISSING]


class Results:
    """A `results.csv` being written; what is in it stays in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = read_results(path) if path.exists() else []
        # A killed writer may have left half a line: what was read back is all there is.
        replace_file(path, _lines([COLUMNS, *(_cells(row) for row in self.rows)]))

    def append(self, row: Row) -> None:
        """Add a row."""
        with self.path.open("ab") as file:
            file.write(_lines([_cells(row)]))
        self.rows.append(row)


def read_results(path: Path | str) -> list[Row]:
    """Read a file of results, or the one in a folder; an unfinished last line does not count."""
    path = Path(path)
    if path.is_dir():
        path = path / FILE
    if not path.is_file():
        raise InputError(f"there is no {path}: l2b element evaluate writes it")
    try:
        lines = path.read_text().splitlines(keepends=True)
        reader = csv.DictReader(line for line in lines if line.endswith("\n"))
        found = list(reader.fieldnames or [])
        if found != [name for name in COLUMNS if name in found or name not in _LATER]:
            raise InputError(
                f"{path} has other columns than this version writes: choose another --out, and "
                "evaluate again"
            )
        return [
            Row(**{name: _value(cells[name], _TYPES[name]) for name in found}) for cells in reader
        ]
    except InputError:
        raise
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} is not a table of results: l2b element evaluate writes one"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path} is damaged ({error}): delete the broken line") from error


def write_accuracies(path: Path, accuracies: dict[tuple[str, int], Accuracy]) -> None:
    """Write the accuracies of models, by backbone and training seed."""
    content = [
        {"backbone": backbone, "seed": seed, **asdict(accuracy)}
        for (backbone, seed), accuracy in accuracies.items()
    ]
    replace_file(path, (json.dumps(content, indent=1) + "\n").encode())


def read_accuracies(path: Path) -> dict[tuple[str, int], Accuracy]:
    """Read them back; none where there is no file."""
    if not path.is_file():
        return {}
    try:
        return {
            (str(one["backbone"]), int(one["seed"])): Accuracy(
                Confusion(**one["confusion"]),
                float(one["mse"]),
                tuple(one["zeros"]),
                tuple(one["ones"]),
            )
            for one in json.loads(path.read_text())
        }
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(
            f"{path} is damaged ({error}): delete it, and evaluate again to have the accuracies"
        ) from error


def _cells(row: Row) -> list[str]:
    return [_cell(getattr(row, name)) for name in COLUMNS]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(repr, value))
    return " ".join(value.split()) if isinstance(value, str) else repr(value)


def _value(cell: str | None, kind: Any) -> Any:
    if cell is None:
        raise ValueError("a line is too short")
    if get_origin(kind) in (Union, types.UnionType):
        if not cell:
            return None
        kind = next(part for part in get_args(kind) if part is not type(None))
    if get_origin(kind) is tuple:
        return tuple(map(float, cell.split()))
    return cell == "True" if kind is bool else kind(cell)


def _lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
