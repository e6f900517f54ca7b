"""What searches amount to: the best known values, and gaps and integrals to them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from learn2branch.errors import InputError
from learn2branch.metrics import Difference, compare, primal_gap, primal_integral
from pipelines.element_level.results import Key, Row

GAP_SHIFT, INTEGRAL_SHIFT = 1e-4, 0.1  # of the geometric means: 0.01 % and 0.1 s


@dataclass(frozen=True)
class Searches:
    """The searches of one evaluation."""

    rows: list[Row]

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError("there are no searches to report: run l2b element evaluate")
        if not self.compared:
            raise InputError(
                "no instance and seed has been searched with every method and model: run l2b "
                "element evaluate with all of them at once"
            )

    @property
    def labels(self) -> list[str]:
        """The methods, the solver alone first."""
        found = dict.fromkeys(row.label for row in self.rows)
        return sorted(found, key=lambda label: ("-" in label, label))

    @property
    def horizon(self) -> float:
        """The time limit."""
        return max(row.time_limit for row in self.rows)

    @cached_property
    def compared(self) -> list[Row]:
        """The searches of the instances and seeds that every method and model has.

        Means over different instances would compare the instances.
        """
        done: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
        for row in self.rows:
            done[row.label, row.training_seed].add((row.instance, row.seed))
        shared = set.intersection(*done.values())
        return [row for row in self.rows if (row.instance, row.seed) in shared]

    def of(self, label: str) -> list[Row]:
        """Return the searches of one method, of those that are compared."""
        return [row for row in self.compared if row.label == label]

    @cached_property
    def best_known(self) -> dict[str, float]:
        """The best value of each instance, over all searches and the reference."""
        best: dict[str, float] = {}
        for row in self.rows:
            values = [v for v in (row.objective, row.best_known) if v is not None]
            values += [best[row.instance]] if row.instance in best else []
            if values:
                best[row.instance] = max(values) if row.maximise else min(values)
        return best

    @cached_property
    def gaps(self) -> dict[Key, float]:
        """The primal gap of each search at its end."""
        return {row.key: primal_gap(row.objective, self._best(row)) for row in self.rows}

    @cached_property
    def integrals(self) -> dict[Key, float]:
        """The primal integral of each search."""
        return {
            row.key: primal_integral(row.times, row.objectives, self._best(row), row.time_limit)
            for row in self.rows
        }

    def mean_gap(self, label: str, seconds: np.ndarray) -> np.ndarray:
        """Return the mean primal gap of a method at some times."""
        return np.mean([self._gap_at(row, seconds) for row in self.of(label)], axis=0)

    def pairs(self) -> list[tuple[str, str]]:
        """Return what to compare: all with the solver alone, and backbones under one method."""
        alone, *others = self.labels
        pairs = [] if "-" in alone else [(label, alone) for label in others]
        for label in self.labels:
            method, _, backbone = label.partition("-")
            if backbone == "dualattn" and (rival := f"{method}-bgnn") in self.labels:
                pairs.append((label, rival))
        return pairs

    def difference(self, label: str, other: str) -> Difference:
        """Return the ratio of two methods' primal integrals, with instances as the unit."""
        mine, theirs = self._integrals_by_instance(label), self._integrals_by_instance(other)
        shared = [instance for instance in mine if instance in theirs]
        return compare([([mine[i]], [theirs[i]]) for i in shared], INTEGRAL_SHIFT)

    def _integrals_by_instance(self, label: str) -> dict[str, float]:
        found: dict[str, list[float]] = defaultdict(list)
        for row in self.of(label):
            found[row.instance].append(self.integrals[row.key])
        return {instance: float(np.mean(values)) for instance, values in found.items()}

    def _best(self, row: Row) -> float:
        return self.best_known.get(row.instance, 0.0)

    def _gap_at(self, row: Row, seconds: np.ndarray) -> np.ndarray:
        gaps = np.array([1.0, *(primal_gap(value, self._best(row)) for value in row.objectives)])
        return gaps[np.searchsorted(np.array(row.times), seconds, side="right")]
