"""The dual-attention backbone: self-attention within, cross-attention between the two node types.

Parameters and equations are the paper's. The forward pass multiplies the projections of keys,
values and outputs together first (`fold`), which is exact and saves a third of the arithmetic in
training and in inference alike; docs/backbone.md derives it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from learn2branch.attention import cross_attention, self_attention, weighted_mean
from learn2branch.combine import Combination, combine
from learn2branch.errors import InputError
from learn2branch.features import FeatureSchema
from learn2branch.graph import BipartiteGraph
from learn2branch.nonzeros import NonZeros
from learn2branch.normaliser import Normaliser


class SelfAttention(nn.Module):
    """LN(x + SelfAttn(x) W_O): every node of a type sees every other of its graph."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.W_Q = nn.Linear(width, heads * width, bias=False)
        self.W_K = nn.Linear(width, heads * width, bias=False)
        self.W_V = nn.Linear(width, heads * width, bias=False)
        self.W_O = nn.Linear(heads * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def mean(self, x: Tensor, target: Tensor, part: Part) -> Tensor:
        """Return what the heads average, (k, heads * d), before the folded output map."""
        return self_attention(self.W_Q(target), self.W_K(x), x, part.sizes, part.all_sizes)


class CrossAttention(nn.Module):
    """LN(x + CrossAttn(x, other) W_O): a node sees those it shares a non-zero with."""

    def __init__(self, width: int, heads: int, edge_encoding: str) -> None:
        super().__init__()
        self.heads = heads
        self.W_Q = nn.Linear(width, heads * width, bias=False)
        self.W_K = nn.Linear(width, heads * width, bias=False)
        self.W_V = nn.Linear(width, heads * width, bias=False)
        self.W_O = nn.Linear(heads * width, width, bias=False)
        if edge_encoding == "linear":
            self.W_E = nn.Parameter(torch.ones(heads, width))  # the paper's W_E, times A_ij
        else:
            self.edge_map = nn.Linear(width, heads * width, bias=False)
        self.norm = nn.LayerNorm(width)

    def mean(
        self, target: Tensor, other: Tensor, part: Part, edges: Tensor | None, backend: str
    ) -> Tensor:
        """Return what the heads average, (k, heads * d), before the folded output map."""
        if edges is None:
            query = target @ fold_query(self.W_Q, self.W_K, self.W_E)
            return cross_attention(query, other, part.entries, backend)
        d, rows = other.shape[1], part.entries.rows
        i, j = rows.row_of_entry(), rows.columns
        p = self.W_Q(target)[i] * self.W_K(other)[j] * self.edge_map(edges)
        p = p.view(-1, self.heads, d).sum(-1) / d**0.5
        return weighted_mean(p, other, rows, backend)


def fold_output(W_V: nn.Linear, W_O: nn.Linear) -> Tensor:
    """W_V W_O of all heads, (heads * d, d): what maps averaged embeddings to the output."""
    d = W_V.in_features
    V = W_V.weight.view(-1, d, d)  # (heads, out, in)
    O = W_O.weight.view(d, -1, d).transpose(0, 1)  # noqa: E741  (heads, out, in)
    return (O @ V).transpose(1, 2).reshape(-1, d)


def fold_query(W_Q: nn.Linear, W_K: nn.Linear, W_E: Tensor) -> Tensor:
    """W_Q diag(w) W_K^T / sqrt(d) of all heads, (d, heads * d): a query for raw embeddings."""
    # Exact: <q*w, k> = h_i (W_Q diag(w) W_K^T) h_j, so keys need no projection of their own.
    d = W_Q.in_features
    Q, K = W_Q.weight.view(-1, d, d), W_K.weight.view(-1, d, d)  # (heads, out, in)
    folded = (Q * W_E.unsqueeze(-1)).transpose(1, 2) @ K / d**0.5  # (heads, in of Q, in of K)
    return folded.transpose(0, 1).reshape(d, -1)


class Part(NamedTuple):
    """What one side of a layer works on: which of its nodes to update, and who they see."""

    entries: NonZeros  # rows are the nodes to update
    sizes: list[int]  # how many nodes to update in each graph
    all_sizes: list[int]  # how many nodes each graph has
    rows: Tensor | None = None  # the nodes to update; None for all

    def of(self, x: Tensor) -> Tensor:
        """Return the embeddings of the nodes to update."""
        return x if self.rows is None else x[self.rows]


class Side(nn.Module):
    """One layer for one node type: both attentions, their fusion, and the feed-forward net."""

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        self_attention: bool,
        cross_attention: bool,
        edge_encoding: str,
    ) -> None:
        super().__init__()
        self.self_attention = SelfAttention(width, heads) if self_attention else None
        self.cross_attention = (
            CrossAttention(width, heads, edge_encoding) if cross_attention else None
        )
        self.fusion = nn.Linear(width * (self_attention + cross_attention), width)
        self.fusion_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, inner, bias=False)
        self.outer = nn.Linear(inner, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(
        self, x: Tensor, other: Tensor, part: Part, edges: Tensor | None, backend: str
    ) -> Tensor:
        target = part.of(x)
        attended: list[tuple[SelfAttention | CrossAttention, Tensor]] = []
        if self.self_attention is not None:
            by_self = self.self_attention.mean(x, target, part)
            attended.append((self.self_attention, by_self))
        if self.cross_attention is not None:
            by_cross = self.cross_attention.mean(target, other, part, edges, backend)
            attended.append((self.cross_attention, by_cross))
        if len(attended) == 2:
            return combine(target, by_self, by_cross, self._combination())
        [(module, mean)] = attended
        fused = module.norm(target + mean @ fold_output(module.W_V, module.W_O))
        fused = self.fusion_norm(self.fusion(fused).relu())
        return self.norm(fused + self.outer(self.inner(fused).relu()))

    def _combination(self) -> Combination:
        first, second = self.self_attention, self.cross_attention
        assert first is not None and second is not None
        norms = (first.norm, second.norm, self.fusion_norm, self.norm)
        return Combination(
            fold_output(first.W_V, first.W_O),
            fold_output(second.W_V, second.W_O),
            self.fusion.weight.T,
            self.inner.weight.T,
            self.outer.weight.T,
            self.fusion.bias,
            *(vector for norm in norms for vector in (norm.weight, norm.bias)),
        )


class Layer(nn.Module):
    """One layer: variables and constraints are updated side by side, from the same input."""

    def __init__(self, *sizes: int, edge_encoding: str) -> None:
        super().__init__()
        width, heads, inner, by_self, by_cross = sizes
        switches = (bool(by_self), bool(by_cross), edge_encoding)
        self.variables = Side(width, heads, inner, *switches)
        self.constraints = Side(width, heads, inner, *switches)


class DualAttention(nn.Module):
    """T layers of dual attention on embedded features: a graph -> (variables, constraints)."""

    SIZES: dict[str, dict[str, int]] = {  # noqa: RUF012
        "full": {"layers": 4, "heads": 2, "width": 64, "inner": 128},  # the paper's
        "small": {"layers": 2, "heads": 2, "width": 32, "inner": 64},
    }

    def __init__(
        self,
        schema: FeatureSchema,
        *,
        layers: int,
        heads: int,
        width: int,
        inner: int,
        edge_encoding: str = "linear",
        self_attention: bool = True,
        cross_attention: bool = True,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        if edge_encoding not in ("linear", "mlp"):
            raise InputError(f"edge_encoding is {edge_encoding!r}: choose 'linear' or 'mlp'")
        if not (self_attention or cross_attention):
            raise InputError("dual attention needs self-attention or cross-attention, or both")
        self.edge_encoding, self.backend, self.width = edge_encoding, backend, width
        self.variable_norm = Normaliser(len(schema.variable))
        self.constraint_norm = Normaliser(len(schema.constraint))
        self.edge_norm = Normaliser(1, shift=False)
        self.variable_embedding = embedding(len(schema.variable), width)
        self.constraint_embedding = embedding(len(schema.constraint), width)
        if edge_encoding == "mlp" and cross_attention:
            self.edge_embedding = embedding(1, width)
        self.layers = nn.ModuleList(
            Layer(
                *(width, heads, inner, self_attention, cross_attention),
                edge_encoding=edge_encoding,
            )
            for _ in range(layers)
        )

    def forward(
        self, graph: BipartiteGraph, candidates: Tensor | None, constraints: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Embed all variables (or the candidates) and, if wanted, the constraints."""
        V = self.variable_embedding(self.variable_norm(graph.variable_features))
        C = self.constraint_embedding(self.constraint_norm(graph.constraint_features))
        values = self.edge_norm(graph.edge_values)
        entries = NonZeros.from_edges(
            graph.edge_index, values, graph.num_constraints, graph.num_variables
        )
        constraint_sizes = graph.constraint_ptr.diff().tolist()
        variable_sizes = graph.variable_ptr.diff().tolist()
        for_constraints = Part(entries, constraint_sizes, constraint_sizes)
        for_variables = Part(entries.transpose, variable_sizes, variable_sizes)
        last = len(self.layers) - 1
        for t, layer in enumerate(self.layers):
            assert isinstance(layer, Layer)
            # The last layer updates only what the head reads.
            if t == last and candidates is not None:
                for_variables = candidate_part(for_variables, candidates, graph.variable_ptr)
            new_V = layer.variables(V, C, for_variables, self._edges(for_variables), self.backend)
            if t < last or constraints:
                edges = self._edges(for_constraints)
                C = layer.constraints(C, V, for_constraints, edges, self.backend)
            V = new_V
        return V, C if constraints else None

    def _edges(self, part: Part) -> Tensor | None:
        """Return the coefficients' embeddings, (e, d), where they are encoded by an MLP."""
        if not hasattr(self, "edge_embedding"):
            return None
        return self.edge_embedding(part.entries.rows.values.unsqueeze(1))

    @torch.no_grad()
    def fit_normaliser(self, graphs: list[BipartiteGraph]) -> None:
        """Estimate shift and scale of the raw features."""
        self.variable_norm.fit(graph.variable_features for graph in graphs)
        self.constraint_norm.fit(graph.constraint_features for graph in graphs)
        self.edge_norm.fit(graph.edge_values for graph in graphs)


def embedding(columns: int, width: int) -> nn.Sequential:
    """Build the two-layer embedding of raw features."""
    return nn.Sequential(nn.Linear(columns, width), nn.ReLU(), nn.Linear(width, width))


def candidate_part(part: Part, candidates: Tensor, pointers: Tensor) -> Part:
    """Restrict the update to candidates, which come graph by graph."""
    graph = torch.bucketize(candidates, pointers[1:], right=True)
    if bool((graph.diff() < 0).any()):
        raise ValueError("candidates must come graph by graph, in the order of the batch")
    sizes = torch.bincount(graph, minlength=pointers.shape[0] - 1).tolist()
    return Part(part.entries.select(candidates), sizes, part.all_sizes, candidates)
