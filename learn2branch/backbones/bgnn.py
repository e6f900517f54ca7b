"""The bipartite graph network of Gasse et al. (2019), the rival in every table.

A layer is two half-convolutions, variables to constraints and back; a message is summed over the
non-zeros, with a scale that is estimated before training and not trained ("prenorm").
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from learn2branch.attention import row_sums
from learn2branch.backbones.dual_attention import embedding
from learn2branch.features import FeatureSchema
from learn2branch.graph import BipartiteGraph
from learn2branch.kernels import KERNELS, address, usable
from learn2branch.nonzeros import NonZeros
from learn2branch.normaliser import Normaliser


class HalfConvolution(nn.Module):
    """Update the nodes of one type from those of the other, along the non-zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.target = nn.Linear(width, width)
        self.edge = nn.Linear(1, width, bias=False)
        self.source = nn.Linear(width, width, bias=False)
        self.message_norm = Normaliser(1, shift=False)
        self.message = nn.Linear(width, width)
        self.sum_norm = Normaliser(1, shift=False)
        self.output = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, width))

    def sums(self, x: Tensor, other: Tensor, entries: NonZeros, backend: str) -> Tensor:
        """Sum W relu(s (L x_i + R x_j + w a_ij)) + b over the non-zeros of each node."""
        scale = self.message_norm.scale  # positive, so it may pass through the ReLU
        target, source = self.target(x) * scale, self.source(other) * scale
        edge = self.edge.weight.squeeze(1) * scale
        sums = edge_sums(target, source, edge, entries, backend)
        degree = entries.rows.pointers.diff().to(x.dtype).unsqueeze(1)
        # Exact: the map after the ReLU is linear, so it is applied once a node, not once an edge.
        return sums @ self.message.weight.T + degree * self.message.bias

    def forward(self, x: Tensor, other: Tensor, entries: NonZeros, backend: str) -> Tensor:
        sums = self.sum_norm(self.sums(x, other, entries, backend))
        return self.output(torch.cat([sums, x], dim=1))


def edge_sums(
    target: Tensor, source: Tensor, edge: Tensor, entries: NonZeros, backend: str = "auto"
) -> Tensor:
    """Sum relu(target_i + source_j + edge a_ij) over each row: (n, d), (m, d), (d,) -> (n, d)."""
    rows = entries.rows
    constant = not rows.values.requires_grad  # the kernel has no gradient for them
    if backend != "scatter" and constant and usable(target.shape[1], target, source, edge):
        return _EdgeSums.apply(target, source, edge, entries)
    message = target[rows.row_of_entry()] + source[rows.columns]
    return row_sums((message + rows.values.unsqueeze(1) * edge).relu(), rows, backend)


class _EdgeSums(torch.autograd.Function):
    """`edge_sums` in C; its backward recomputes the messages instead of keeping them."""

    @staticmethod
    def forward(
        ctx: Any, target: Tensor, source: Tensor, edge: Tensor, entries: NonZeros
    ) -> Tensor:
        tensors = tuple(tensor.contiguous() for tensor in (target, source, edge))
        values = entries.rows.values.to(target.dtype)
        out = torch.empty_like(target)
        KERNELS.edge_sums_forward(
            *(target.dtype == torch.float64, torch.get_num_threads(), *target.shape),
            *map(address, (entries.rows.pointers, entries.rows.columns, values, *tensors, out)),
        )
        ctx.save_for_backward(*tensors, values)
        ctx.entries = entries
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        target, source, edge, values = ctx.saved_tensors
        rows, columns = ctx.entries.rows, ctx.entries.columns
        sizes = (target.dtype == torch.float64, torch.get_num_threads())
        grad = grad.contiguous()
        grad_target, grad_source = torch.empty_like(target), torch.empty_like(source)
        grad_edges = torch.empty_like(source)  # its sum over the rows is the edge's gradient
        KERNELS.edge_sums_backward_rows(
            *(*sizes, *target.shape),
            *map(address, (rows.pointers, rows.columns, values, target, source, edge)),
            *map(address, (grad, grad_target)),
        )
        column_values = columns.values.to(target.dtype)
        KERNELS.edge_sums_backward_columns(
            *(*sizes, *source.shape),
            *map(address, (columns.pointers, columns.columns, column_values)),
            *map(address, (target, source, edge, grad, grad_source, grad_edges)),
        )
        return grad_target, grad_source, grad_edges.sum(dim=0), None


class BipartiteGNN(nn.Module):
    """Half-convolutions on embedded features: a graph -> (variables, constraints)."""

    SIZES: dict[str, dict[str, int]] = {  # noqa: RUF012
        "full": {"layers": 2, "width": 64},  # the paper's
        "small": {"layers": 1, "width": 32},
    }

    def __init__(
        self, schema: FeatureSchema, *, layers: int, width: int, backend: str = "auto"
    ) -> None:
        super().__init__()
        self.backend, self.width = backend, width
        self.variable_norm = Normaliser(len(schema.variable))
        self.constraint_norm = Normaliser(len(schema.constraint))
        self.edge_norm = Normaliser(1, shift=False)
        self.variable_embedding = nn.Sequential(*embedding(len(schema.variable), width), nn.ReLU())
        self.constraint_embedding = nn.Sequential(
            *embedding(len(schema.constraint), width), nn.ReLU()
        )
        # Constraints first, then variables, in turn.
        self.convolutions = nn.ModuleList(HalfConvolution(width) for _ in range(2 * layers))

    def forward(
        self, graph: BipartiteGraph, candidates: Tensor | None, constraints: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Embed all variables (or the candidates) and, if wanted, the constraints."""
        V, C, entries = self._embed(graph)
        last = len(self.convolutions) - 1
        for step, convolution in enumerate(self.convolutions):
            if step % 2 == 0:
                C = convolution(C, V, entries, self.backend)
            elif step == last and candidates is not None:
                # The last layer updates only what the head reads.
                chosen = entries.transpose.select(candidates)
                V = convolution(V[candidates], C, chosen, self.backend)
            else:
                V = convolution(V, C, entries.transpose, self.backend)
        return V, C if constraints else None

    def _embed(self, graph: BipartiteGraph) -> tuple[Tensor, Tensor, NonZeros]:
        V = self.variable_embedding(self.variable_norm(graph.variable_features))
        C = self.constraint_embedding(self.constraint_norm(graph.constraint_features))
        values = self.edge_norm(graph.edge_values)
        sizes = (graph.num_constraints, graph.num_variables)
        return V, C, NonZeros.from_edges(graph.edge_index, values, *sizes)

    @torch.no_grad()
    def fit_normaliser(self, graphs: list[BipartiteGraph]) -> None:
        """Estimate the scales one after the other, each behind those before it, as Gasse et al."""
        self.variable_norm.fit(graph.variable_features for graph in graphs)
        self.constraint_norm.fit(graph.constraint_features for graph in graphs)
        self.edge_norm.fit(graph.edge_values for graph in graphs)
        states = [self._embed(graph) for graph in graphs]
        for step, module in enumerate(self.convolutions):
            assert isinstance(module, HalfConvolution)
            to_constraints = step % 2 == 0
            inputs = [
                (C, V, entries) if to_constraints else (V, C, entries.transpose)
                for V, C, entries in states
            ]
            # relu(s x) = s relu(x): the scale in front of the ReLU is that of its argument.
            module.message_norm.fit(_messages(module, *given).reshape(-1, 1) for given in inputs)
            module.sum_norm.fit(
                module.sums(*given, self.backend).reshape(-1, 1) for given in inputs
            )
            outputs = [module(*given, self.backend) for given in inputs]
            states = [
                (V, out, entries) if to_constraints else (out, C, entries)
                for (V, C, entries), out in zip(states, outputs, strict=True)
            ]


def _messages(convolution: HalfConvolution, x: Tensor, other: Tensor, entries: NonZeros) -> Tensor:
    """Return what stands before the ReLU, unscaled, (e, d)."""
    rows = entries.rows
    message = convolution.target(x)[rows.row_of_entry()] + convolution.source(other)[rows.columns]
    return message + convolution.edge(rows.values.unsqueeze(1))
