"""The two sets of small instances with their labels: made in processes, kept in one file each."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from instances import ParameterError, foldable, random_milp
from instances.stack import GREATER, LESS, Milps
from learn2branch.errors import InputError, WorkError
from learn2branch.runs import replace_file
from pipelines.parallel import run
from pipelines.progress import say, track
from solver_plugins.labels import Label, solve_label

DATASETS = ("unfoldable", "foldable")
FORMAT = 1  # of the file; counts up when its arrays change
_CHUNK = 50  # instances a task: some seconds, so that little is lost when work is stopped


@dataclass(frozen=True)
class Recipe:
    """All that a set follows from; equal recipes make equal sets."""

    dataset: str  # one of DATASETS
    count: int = 2000  # the first half is for training, the second for testing
    seed: int = 0
    variables: int = 20
    constraints: int = 6
    nonzeros: int | None = None  # of each instance; None: 60 or the like, as the set has it

    def checked(self) -> Recipe:
        """Return the recipe with its non-zeros filled in, or say why it cannot be made."""
        if self.dataset == "foldable":
            foldable.check_sizes(self.variables, self.constraints, self.nonzeros)
            nonzeros, step = 2 * self.constraints, 4
        elif self.dataset == "unfoldable":
            # Half of the matrix, which is the paper's 60 of 6 x 20.
            nonzeros = self.nonzeros or max(1, self.variables * self.constraints // 2)
            random_milp.check_sizes(self.variables, self.constraints, nonzeros)
            step = 2
        else:
            raise InputError(f"'{self.dataset}' is not one of {', '.join(DATASETS)}")
        if self.count < step or self.count % step:
            raise ParameterError(
                f"--count {self.count} has no two equal halves"
                f"{' of whole pairs' if step == 4 else ''}: give a multiple of {step}"
            )
        return Recipe(**{**asdict(self), "nonzeros": nonzeros})

    def make(self, indices: range) -> Milps:
        """Make the instances with these numbers."""
        sizes = {"variables": self.variables, "constraints": self.constraints}
        if self.dataset == "foldable":
            return foldable.foldable_milps(indices, seed=self.seed, **sizes)
        assert self.nonzeros is not None
        return random_milp.random_milps(indices, seed=self.seed, nonzeros=self.nonzeros, **sizes)

    def __str__(self) -> str:
        return (
            f"{self.count} {self.dataset} instances of {self.constraints} x {self.variables} with "
            f"{self.nonzeros} non-zeros, seed {self.seed}"
        )


@dataclass(frozen=True)
class LabelledMilps:
    """A set of instances and what SCIP proved of each."""

    recipe: Recipe
    milps: Milps
    feasible: NDArray[np.bool_]  # (k,)
    bounded: NDArray[np.bool_]  # (k,)
    value: NDArray[np.float64]  # (k,), the optimal value; NaN where there is none

    def half(self, which: str) -> NDArray[np.int64]:
        """Return the positions of the training or the test half."""
        middle = len(self.milps) // 2
        return np.arange(middle) if which == "train" else np.arange(middle, len(self.milps))


def generate(recipe: Recipe, *, jobs: int = 1, out: Path = Path("data/instance")) -> Path:
    """Make a set, label it by SCIP and write `<out>/<dataset>.npz`; an equal one is kept."""
    recipe = recipe.checked()
    path = out / f"{recipe.dataset}.npz"
    if path.exists():
        existing = load(path).recipe
        if existing != recipe:
            raise InputError(f"{path} holds {existing}: delete it, or choose another --out")
        say(f"{path} is there already: {recipe}")
        return path
    parts = out / f"{recipe.dataset}-{_digest(recipe)}.parts"
    parts.mkdir(parents=True, exist_ok=True)
    tasks = [
        (recipe, range(first, min(first + _CHUNK, recipe.count)), parts / f"{first:07d}.npz")
        for first in range(0, recipe.count, _CHUNK)
    ]
    left = [task for task in tasks if not task[2].exists()]
    done = (len(tasks) - len(left)) * _CHUNK
    with track(f"Labelling {recipe.dataset}", recipe.count, done) as progress:
        for outcome in run(_make_part, left, jobs=jobs):
            if outcome.error:
                raise WorkError(f"instances {left[outcome.index][1]}: {outcome.error}")
            progress.advance(_CHUNK)
    loaded = [_arrays(part) for _, _, part in tasks]
    arrays = {name: np.concatenate([part[name] for part in loaded]) for name in loaded[0]}
    _write(path, {**arrays, "recipe": np.array(json.dumps(asdict(recipe))), "format": FORMAT})
    shutil.rmtree(parts)
    return path


def load(path: Path) -> LabelledMilps:
    """Read a set that `generate` wrote."""
    if not path.exists():
        raise InputError(f"{path} is not there: make it with `l2b instance generate`")
    arrays = _arrays(path)
    try:
        version, recipe = int(arrays.pop("format")), json.loads(str(arrays.pop("recipe")))
        if version != FORMAT:
            raise InputError(
                f"{path} has format {version}, this version reads {FORMAT}: make it again"
            )
        if any(len(array) != recipe["count"] for array in arrays.values()):
            raise ValueError(f"not everything in it has {recipe['count']} instances")
        feasible, bounded, value = (
            arrays.pop(name) for name in ("feasible", "bounded", "value_of_optimum")
        )
        return LabelledMilps(Recipe(**recipe), Milps(**arrays), feasible, bounded, value)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a set of labelled instances: {error}") from error


def label(milps: Milps, index: int) -> Label:
    """Ask SCIP about one instance of a stack."""
    rhs, sense = milps.rhs[index], milps.sense[index]
    return solve_label(
        milps.objective[index],
        milps.is_integer[index],
        milps.lower[index],
        milps.upper[index],
        np.where(sense == LESS, -np.inf, rhs),
        np.where(sense == GREATER, np.inf, rhs),
        milps.row[index],
        milps.column[index],
        milps.value[index],
    )


def _make_part(task: tuple[Recipe, range, Path]) -> None:
    recipe, indices, path = task
    milps = recipe.make(indices)
    labels = [label(milps, index) for index in range(len(milps))]
    _write(
        path,
        {
            **milps.arrays(),
            "feasible": np.array([label.feasible for label in labels]),
            "bounded": np.array([label.bounded for label in labels]),
            "value_of_optimum": np.array([label.value for label in labels]),
        },
    )


def _digest(recipe: Recipe) -> str:
    return hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]


def _arrays(path: Path) -> dict[str, NDArray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # a damaged archive can raise nearly anything
        raise InputError(
            f"{path} cannot be read ({error}): if it is damaged, delete it and make it again"
        ) from error


def _write(path: Path, arrays: dict[str, Any]) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    replace_file(path, content.getvalue())
