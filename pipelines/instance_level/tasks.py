"""What is predicted of an instance: whether it is feasible, or its optimal value."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learn2branch.errors import InputError
from pipelines.instance_level.data import LabelledMilps
from pipelines.instance_level.graphs import InstanceBatch, InstanceSet


@dataclass(frozen=True)
class InstanceTask:
    """A loss and a metric, both sums over the instances of a batch, as the training loop asks."""

    name: str
    metric: str
    epochs: int  # the paper's
    losses: Callable[[Tensor, Tensor], Tensor]  # (outputs, targets) -> (graphs,)
    metrics: Callable[[Tensor, Tensor], Tensor]

    def step(self, model: nn.Module, batch: InstanceBatch) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss and the metric of a batch, summed over its instances."""
        outputs = model(batch.graph)
        metric = self.metrics(outputs.detach(), batch.targets).sum()
        return self.losses(outputs, batch.targets).sum(), {self.metric: metric}

    def solved_below(self, count: int) -> float:
        """Return the mean loss below which these many instances are solved."""
        # One wrong answer costs at least ln 2; values are only as exact as SCIP's tolerances.
        return math.log(2) / count if self.name == "feasibility" else 1e-12

    def targets(self, data: LabelledMilps) -> NDArray[np.float64]:
        """Return what is to be predicted of each instance; NaN where there is nothing."""
        if self.name == "feasibility":
            return data.feasible.astype(np.float64)
        return np.where(data.feasible & data.bounded, data.value, np.nan)

    def baseline(self, seen: NDArray, asked: NDArray) -> float:
        """Return the metric of the best constant: the majority class, or the mean value."""
        if self.name == "feasibility":
            return float((asked != (seen.mean() > 0.5)).mean())
        return float(((asked - seen.mean()) ** 2).mean())

    def half(
        self, data: LabelledMilps, which: str, *, random: str = "none", permute: int | None = None
    ) -> InstanceSet:
        """Return the instances of a half that have a target; `permute` is a seed to renumber by.

        Each has its own random numbers, whatever other instances there are.
        """
        milps = data.milps if permute is None else data.milps.permuted(permute)
        targets = self.targets(data)
        positions = data.half(which)
        everything = InstanceSet(milps, targets, random=random, seed=data.recipe.seed)
        return everything.subset(positions[~np.isnan(targets[positions])])


TASKS = {
    "feasibility": InstanceTask(
        "feasibility",
        "error_rate",
        10_000,
        lambda logits, feasible: nn.functional.binary_cross_entropy_with_logits(
            logits, feasible, reduction="none"
        ),
        lambda logits, feasible: ((logits > 0) != (feasible > 0.5)).to(torch.float64),
    ),
    "objective": InstanceTask(
        "objective",
        "mse",
        12_000,
        lambda values, optima: (values - optima).square(),
        lambda values, optima: (values.double() - optima.double()).square(),
    ),
}


def task_named(name: str) -> InstanceTask:
    """Return a task; any other name is answered with all of them."""
    if name not in TASKS:
        raise InputError(f"'{name}' is not one of {', '.join(TASKS)}")
    return TASKS[name]
