"""A trained model at work: probabilities for the binaries of an instance, and their accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learn2branch.errors import InputError
from learn2branch.graph import BipartiteGraph
from learn2branch.metrics import Confusion
from learn2branch.policy import find_policy, load_policy
from pipelines.element_level.features import element_graph
from pipelines.element_level.labels import Labels
from solver_plugins.arrays import Floats, MilpArrays

BINS = 20  # of the histogram of predicted probabilities


class Predictor:
    """An exported element model; `predictor(arrays)` gives a probability for every variable."""

    def __init__(self, model: Path | str) -> None:
        self.path = find_model(model)
        self._policy = load_policy(self.path)
        metadata = self._policy.metadata
        if metadata["task"] != "element":
            raise InputError(
                f"{self.path} is a model of the {metadata['task']} task: give one that "
                "l2b element train wrote"
            )
        self.provenance: dict[str, Any] = metadata["provenance"]
        self.backbone: str = metadata["config"]["backbone"]

    @property
    def training_seed(self) -> int:
        """The seed of its training."""
        return int(self.provenance.get("seed", 0))

    @property
    def label(self) -> str:
        """The backbone and the seed of its training, as names of rows."""
        return f"{self.backbone} of seed {self.training_seed}"

    def __call__(self, arrays: MilpArrays) -> Floats:
        """Return the probability of being 1, (n,); 0.5 for variables that are not binary."""
        binaries = np.flatnonzero(arrays.is_binary)
        graph = element_graph(arrays, bool(self.provenance.get("position", False)))
        probabilities = np.full(arrays.num_variables, 0.5)
        if len(binaries):
            probabilities[binaries] = self.on_graph(graph, binaries)
        return probabilities

    def on_graph(self, graph: BipartiteGraph, binaries: npt.NDArray[np.int64]) -> Floats:
        """Return the probabilities of some variables of a graph; (b,)."""
        logits = self._policy(*graph.tensors(), torch.from_numpy(binaries))
        result: Floats = torch.sigmoid(logits.double()).numpy()
        return result


def find_model(model: Path | str) -> Path:
    """Return the policy file of a run folder, or the file itself."""
    path = Path(model)
    return find_policy(path / "policy.pt" if path.is_dir() else path)


@dataclass(frozen=True)
class Accuracy:
    """How right a prediction is, over all binaries of some instances."""

    confusion: Confusion
    mse: float
    zeros: tuple[int, ...]  # binaries that are 0, by their probability in BINS equal bins
    ones: tuple[int, ...]  # binaries that are 1

    @property
    def majority_error_rate(self) -> float:
        """The error rate of always predicting the more frequent value."""
        ones = self.confusion.true_positive + self.confusion.false_negative
        return min(ones, self.confusion.total - ones) / max(self.confusion.total, 1)

    @property
    def majority(self) -> Accuracy:
        """What always predicting the more frequent value would give."""
        ones = self.confusion.true_positive + self.confusion.false_negative
        zeros = self.confusion.total - ones
        constant = Confusion(ones, zeros, 0, 0) if ones > zeros else Confusion(0, 0, ones, zeros)
        return Accuracy(constant, self.majority_error_rate, (), ())


def measure_accuracy(predictor: Predictor, labels: Iterable[Labels]) -> Accuracy:
    """Compare predictions with the best known solutions."""
    confusion, squares, count = Confusion(), 0.0, 0
    zeros, ones = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    for one in labels:
        p, truth = predictor.on_graph(one.graph, one.binaries), one.best
        confusion += Confusion.of(p > 0.5, truth)
        squares += float(np.square(p - truth).sum())
        count += len(truth)
        bins = np.minimum((p * BINS).astype(int), BINS - 1)
        zeros += np.bincount(bins[~truth], minlength=BINS)
        ones += np.bincount(bins[truth], minlength=BINS)
    return Accuracy(confusion, squares / max(count, 1), tuple(zeros.tolist()), tuple(ones.tolist()))
