"""Labels as a dataset of graphs, and the task of predicting binaries from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from learn2branch.graph import BipartiteGraph
from pipelines.element_level.labels import Labels, read_labels

TEMPERATURE = 0.1  # of the weights of a pool; the paper's units are 7 to 45 % of its objectives
_KEPT_BYTES = 4e9  # what a dataset holds in memory; beyond it, files are read again


@dataclass(frozen=True)
class PoolBatch:
    """Some instances as one graph, with their binaries and what to predict for them."""

    graph: BipartiteGraph
    binaries: Tensor  # (b,) int64, variables of the batch, instance by instance
    owner: Tensor  # (b,) int64, the instance of each
    target: Tensor  # (b,) float32, weighted mean of the pool
    best: Tensor  # (b,) float32, value in the best solution

    def __len__(self) -> int:
        return self.graph.num_graphs

    def to(self, device: torch.device | str) -> PoolBatch:
        """Copy to a device."""
        return PoolBatch(
            self.graph.to(device),
            *(t.to(device) for t in (self.binaries, self.owner, self.target, self.best)),
        )


class Pools:
    """The instances of some label files; their graphs stay in memory as far as there is room."""

    def __init__(self, files: Sequence[Path], temperature: float = TEMPERATURE) -> None:
        self.files, self.temperature = list(files), temperature
        self._kept: dict[int, Labels] = {}
        self._bytes = 0.0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Labels:
        if index in self._kept:
            return self._kept[index]
        labels = read_labels(self.files[index])
        size = sum(t.numel() * t.element_size() for t in labels.graph.tensors())
        if self._bytes + size <= _KEPT_BYTES:
            self._kept[index] = labels
            self._bytes += size
        return labels

    def describe(self, indices: Sequence[int]) -> str:
        """Name instances, for error messages."""
        return ", ".join(str(self.files[i]) for i in indices)

    def batch(self, indices: Sequence[int]) -> PoolBatch:
        """Return these instances as one batch."""
        members = [self[i] for i in indices]
        graph = BipartiteGraph.batch([labels.graph for labels in members])
        offsets = graph.variable_ptr[:-1].tolist()
        sizes = torch.tensor([len(labels.binaries) for labels in members])
        return PoolBatch(
            graph,
            torch.cat(
                [
                    torch.from_numpy(labels.binaries) + offset
                    for labels, offset in zip(members, offsets, strict=True)
                ]
            ),
            torch.arange(len(members)).repeat_interleave(sizes),
            _floats([labels.target(self.temperature) for labels in members]),
            _floats([labels.best for labels in members]),
        )


def _floats(parts: Sequence[Any]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.float32))


class BinaryPrediction:
    """Cross-entropy against the pool, averaged over the binaries of each instance."""

    def step(self, model: nn.Module, batch: PoolBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and the error rate, summed over the instances."""
        logits = model(batch.graph, batch.binaries)
        losses = binary_cross_entropy_with_logits(logits, batch.target, reduction="none")
        wrong = ((logits > 0).float() != batch.best).float()
        count = torch.bincount(batch.owner, minlength=len(batch)).float()
        share = 1 / count[batch.owner]
        return (losses * share).sum(), {"error_rate": (wrong * share).sum().detach()}
