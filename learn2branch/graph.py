"""`BipartiteGraph`: a MILP, or a state of its solution, as constraints, variables and non-zeros.

Many graphs can be joined into one with pointers to where each begins; nothing is ever padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class BipartiteGraph:
    """Constraints and variables as nodes, non-zero coefficients as edges; one graph or a batch.

    The first four fields are what a policy is called with, in this order. The pointers say which
    nodes belong to which graph of a batch: graph b owns the variables
    `variable_ptr[b]:variable_ptr[b + 1]`. Left out, they describe a single graph.
    """

    constraint_features: Tensor  # (m, c) float32
    edge_index: Tensor  # (2, e) int64, row 0 the constraint, row 1 the variable
    edge_values: Tensor  # (e,) float32, coefficients
    variable_features: Tensor  # (n, v) float32
    constraint_ptr: Tensor = None  # type: ignore[assignment]  # (graphs + 1,) int64
    variable_ptr: Tensor = None  # type: ignore[assignment]  # (graphs + 1,) int64

    def __post_init__(self) -> None:
        if self.constraint_ptr is None:
            pointers = torch.tensor([0, self.num_constraints], device=self.edge_index.device)
            object.__setattr__(self, "constraint_ptr", pointers)
        if self.variable_ptr is None:
            pointers = torch.tensor([0, self.num_variables], device=self.edge_index.device)
            object.__setattr__(self, "variable_ptr", pointers)

    @property
    def num_constraints(self) -> int:
        """Constraints, over all graphs of the batch."""
        return self.constraint_features.shape[0]

    @property
    def num_variables(self) -> int:
        """Variables, over all graphs of the batch."""
        return self.variable_features.shape[0]

    @property
    def num_edges(self) -> int:
        """Non-zeros, over all graphs of the batch."""
        return self.edge_values.shape[0]

    @property
    def num_graphs(self) -> int:
        """How many graphs are joined here; 1 unless this is a batch."""
        return self.variable_ptr.shape[0] - 1

    def to(self, device: torch.device | str) -> BipartiteGraph:
        """Copy to a device; returns the same tensors where they are there already."""
        return BipartiteGraph(*(getattr(self, field.name).to(device) for field in fields(self)))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the four arguments of a policy."""
        return (
            self.constraint_features,
            self.edge_index,
            self.edge_values,
            self.variable_features,
        )

    @staticmethod
    def batch(graphs: Sequence[BipartiteGraph]) -> BipartiteGraph:
        """Join graphs of any sizes (batches too) into one, in order."""
        if not graphs:
            raise ValueError("cannot batch an empty list of graphs")
        constraint_ptr = _joined_pointers([graph.constraint_ptr for graph in graphs])
        variable_ptr = _joined_pointers([graph.variable_ptr for graph in graphs])
        first_constraint, first_variable, edge_indices = 0, 0, []
        for graph in graphs:
            offset = torch.tensor([[first_constraint], [first_variable]])
            edge_indices.append(graph.edge_index + offset.to(graph.edge_index.device))
            first_constraint += graph.num_constraints
            first_variable += graph.num_variables
        return BipartiteGraph(
            torch.cat([graph.constraint_features for graph in graphs]),
            torch.cat(edge_indices, dim=1),
            torch.cat([graph.edge_values for graph in graphs]),
            torch.cat([graph.variable_features for graph in graphs]),
            constraint_ptr,
            variable_ptr,
        )

    def unbatch(self) -> Iterator[BipartiteGraph]:
        """Yield the graphs of a batch one by one, each with its own numbering."""
        owner = torch.bucketize(self.edge_index[1], self.variable_ptr[1:], right=True)
        for b in range(self.num_graphs):
            rows = slice(int(self.constraint_ptr[b]), int(self.constraint_ptr[b + 1]))
            columns = slice(int(self.variable_ptr[b]), int(self.variable_ptr[b + 1]))
            edges = owner == b
            start = torch.tensor([[rows.start], [columns.start]], device=owner.device)
            yield BipartiteGraph(
                self.constraint_features[rows],
                self.edge_index[:, edges] - start,
                self.edge_values[edges],
                self.variable_features[columns],
            )


def _joined_pointers(pointers: Sequence[Tensor]) -> Tensor:
    sizes = torch.cat([pointer.diff() for pointer in pointers])
    return torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
