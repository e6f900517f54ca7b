"""Answers for a user's own files, from a model of instances; what it cannot know is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from instances.stack import EQUAL, GREATER, LESS, Milps
from learn2branch import load_policy
from learn2branch.errors import InputError
from pipelines.instance_level.evaluate import instance_provenance
from pipelines.instance_level.graphs import InstanceSet
from pipelines.instance_level.train import constant_columns
from solver_plugins.arrays import MilpArrays, read_arrays


@dataclass(frozen=True)
class Prediction:
    """What a model says of a file, or why it says nothing."""

    path: Path
    task: str  # "feasibility" or "objective"
    value: float = float("nan")  # the probability of being feasible, or the optimal value
    refusal: str | None = None


def predict(
    policy: Path | str, paths: Iterable[Path | str], *, seed: int = 0
) -> Iterator[Prediction]:
    """Answer for each file; `seed` draws the random numbers of models that use them."""
    about = instance_provenance(policy)
    if about["random"] == "position":
        raise InputError(
            f"{policy} knows nodes by their numbers in its own set (--random position), and files "
            "have others: train one with another --random"
        )
    scorer = load_policy(policy)
    for path in map(Path, paths):
        try:
            arrays = read_arrays(path)
            graph = _graph(arrays, about, seed)
        except InputError as error:
            refusal = str(error).removeprefix(f"{path}: ")
            yield Prediction(path, about["task"], refusal=refusal)
            continue
        output = float(scorer(*graph.tensors()))
        yield Prediction(path, about["task"], _answer(about["task"], output, arrays))


def _answer(task: str, output: float, arrays: MilpArrays) -> float:
    if task == "feasibility":
        return float(torch.sigmoid(torch.tensor(output)))
    return (-output if arrays.maximise else output) + arrays.offset


def _graph(arrays: MilpArrays, about: dict[str, Any], seed: int) -> Any:
    recipe = about["recipe"]
    found = (arrays.num_variables, arrays.num_constraints)
    if found != (recipe["variables"], recipe["constraints"]):
        raise InputError(
            f"it has {found[0]} variables and {found[1]} constraints, the model was made for "
            f"{recipe['variables']} and {recipe['constraints']}"
        )
    for name, lower, upper in zip(arrays.names, arrays.lower, arrays.upper, strict=True):
        if not np.isfinite(lower) or not np.isfinite(upper):
            side = "upper" if np.isfinite(lower) else "lower"
            raise InputError(
                f"variable {name} has no {side} bound, the model was made for bounded variables"
            )
    for number, (left, right) in enumerate(zip(arrays.lhs, arrays.rhs, strict=True), start=1):
        if left != right and np.isfinite(left) == np.isfinite(right):
            sides = "two sides" if np.isfinite(left) else "no side"
            raise InputError(
                f"constraint {number} has {sides}, the model was made for <=, = and >= alone"
            )
    instance = InstanceSet(as_milps(arrays), np.zeros(1), random=about["random"], seed=seed)
    graph = instance.batch([0]).graph
    _refuse_what_was_never_seen(graph, about["constant"])
    return graph


def _refuse_what_was_never_seen(graph: Any, seen: dict[str, dict[str, float]]) -> None:
    here = constant_columns(graph)
    for kind, columns in seen.items():
        for name, value in columns.items():
            if here[kind].get(name) != value:
                raise InputError(
                    f"its {name.replace('_', ' ')} is not always {value:g}, "
                    "the model was made for that alone"
                )


def as_milps(arrays: MilpArrays) -> Milps:
    """Return an instance as a stack of one, minimised."""
    matrix = arrays.matrix.tocoo()
    sense = np.where(arrays.lhs == arrays.rhs, EQUAL, np.where(np.isinf(arrays.rhs), GREATER, LESS))
    return Milps(
        (-arrays.objective if arrays.maximise else arrays.objective)[None] + 0.0,
        arrays.is_integer[None],
        arrays.lower[None],
        arrays.upper[None],
        np.where(sense == GREATER, arrays.lhs, arrays.rhs)[None],
        sense.astype(np.int8)[None],
        matrix.row.astype(np.int64)[None],
        matrix.col.astype(np.int64)[None],
        matrix.data[None],
    )
