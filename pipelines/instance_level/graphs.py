"""Instances as graphs with the paper's features, and thousands of them as one batch.

The instances of a set have one size, so a batch is index arithmetic: no loop over graphs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from instances.stack import Milps
from learn2branch.features import INSTANCE, INSTANCE_RANDOM, FeatureSchema
from learn2branch.graph import BipartiteGraph

# Where the random number of each variable and constraint comes from:
RANDOM = (
    "none",  # there is no such feature
    "instance",  # drawn once for each instance, which keeps it; a test instance has its own
    "redrawn",  # drawn anew whenever an instance is seen, in training and in testing
    "position",  # drawn once for all: variable 3 has the same number in every instance
)


def schema(random: str) -> FeatureSchema:
    """Return the columns that instances have with this kind of random feature."""
    return INSTANCE if random == "none" else INSTANCE_RANDOM


@dataclass(frozen=True)
class InstanceBatch:
    """Some instances as one graph, and what is to be predicted of each."""

    graph: BipartiteGraph
    targets: Tensor  # (graphs,) float32

    def __len__(self) -> int:
        return self.targets.shape[0]

    def to(self, device: torch.device | str) -> InstanceBatch:
        """Copy to a device."""
        return InstanceBatch(self.graph.to(device), self.targets.to(device))


class InstanceSet:
    """Instances of one size with their targets, as the training loop takes them."""

    def __init__(self, milps: Milps, targets: NDArray, *, random: str = "none", seed: int = 0):
        self.random, self.seed = random, seed
        variable = np.stack([milps.objective, milps.is_integer, milps.lower, milps.upper], axis=2)
        constraint = np.stack([milps.rhs, milps.sense], axis=2)
        if random in ("instance", "position"):
            numbers = _fixed_numbers(milps, once=random == "position", seed=seed)
            variable = np.concatenate([variable, numbers[:, : milps.variables]], axis=2)
            constraint = np.concatenate([constraint, numbers[:, milps.variables :]], axis=2)
        self.variable_features = torch.tensor(variable, dtype=torch.float32)  # (k, n, v)
        self.constraint_features = torch.tensor(constraint, dtype=torch.float32)  # (k, m, c)
        self.edge_index = torch.tensor(np.stack([milps.row, milps.column], axis=1))  # (k, 2, e)
        self.edge_values = torch.tensor(milps.value, dtype=torch.float32)  # (k, e)
        self.targets = torch.tensor(targets, dtype=torch.float32)  # (k,)

    def __len__(self) -> int:
        return self.targets.shape[0]

    def subset(self, positions: NDArray[np.int64]) -> InstanceSet:
        """Return some of the instances, each with the features it has here."""
        result = object.__new__(InstanceSet)
        result.random, result.seed = self.random, self.seed
        which = torch.as_tensor(positions)
        for name in ("variable_features", "constraint_features", "edge_index", "edge_values"):
            setattr(result, name, getattr(self, name)[which])
        result.targets = self.targets[which]
        return result

    def batch(self, positions: Sequence[int] | Tensor) -> InstanceBatch:
        """Join the instances at these positions into one graph."""
        indices = torch.as_tensor(positions, dtype=torch.int64)
        variable = self.variable_features[indices]
        constraint = self.constraint_features[indices]
        if self.random == "redrawn":
            # Follows from which instances meet, in which order: new in every epoch, yet the same
            # again in a run that is repeated or resumed.
            key = zlib.crc32(indices.numpy().tobytes(), self.seed)
            generator = torch.Generator().manual_seed(key)
            variable = _with_column(variable, generator)
            constraint = _with_column(constraint, generator)
        graphs, n, m = len(indices), variable.shape[1], constraint.shape[1]
        number = torch.arange(graphs + 1)
        first_node = torch.stack([number[:-1] * m, number[:-1] * n], dim=1)[:, :, None]
        edge_index = (self.edge_index[indices] + first_node).transpose(0, 1).reshape(2, -1)
        graph = BipartiteGraph(
            constraint.reshape(graphs * m, -1),
            edge_index,
            self.edge_values[indices].reshape(-1),
            variable.reshape(graphs * n, -1),
            number * m,
            number * n,
        )
        return InstanceBatch(graph, self.targets[indices])


class Groups:
    """A set for training: neighbours that stay together in a batch, several times over.

    Foldable twins share all but two non-zeros, and what they share says nothing: together in a
    batch it cancels out, apart it is noise that hides the rest. Several passes count as one epoch
    of the training loop, which judges after each.
    """

    def __init__(self, instances: InstanceSet, size: int = 1, passes: int = 1):
        self.instances, self.size, self.passes = instances, size, passes
        self.groups = len(instances) // size

    def __len__(self) -> int:
        return self.passes * self.groups

    def batch(self, positions: Sequence[int]) -> InstanceBatch:
        """Join whole groups; a position counts on through the passes."""
        first = torch.as_tensor(positions)[:, None] % self.groups * self.size
        return self.instances.batch((first + torch.arange(self.size)).flatten())


def _fixed_numbers(milps: Milps, *, once: bool, seed: int) -> NDArray[np.float64]:
    """Return a number for each variable, then each constraint, (k, n + m, 1)."""
    nodes = milps.variables + milps.constraints
    numbers = np.random.default_rng([seed, 1]).random((1 if once else len(milps), nodes, 1))
    return np.broadcast_to(numbers, (len(milps), nodes, 1))


def _with_column(features: Tensor, generator: torch.Generator) -> Tensor:
    numbers = torch.rand((*features.shape[:2], 1), generator=generator)
    return torch.cat([features, numbers], dim=2)
