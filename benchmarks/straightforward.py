"""The two backbones written the usual way: the benchmarks' yardstick, the tests' definition.

Queries, keys and values are projected, gathered to the edges as (edges, heads, d) tensors and
summed back with `index_add`, one graph at a time, as the published modules do. Nothing is folded,
left out or compiled. Both take their weights from a model of `learn2branch.build_model`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learn2branch.attention import CLAMP, EPSILON
from learn2branch.backbones.bgnn import HalfConvolution
from learn2branch.backbones.dual_attention import CrossAttention, SelfAttention, Side
from learn2branch.graph import BipartiteGraph
from learn2branch.models import GraphModel


def self_attention(module: SelfAttention, x: Tensor) -> Tensor:
    """LN(x + SelfAttn(x) W_O) with all four projections."""
    n, d = x.shape
    Q = (
        module.W_Q(x).view(n, module.W_Q.out_features // d, d).transpose(0, 1).sigmoid()
    )  # (heads, n, d)
    K = module.W_K(x).view(n, module.W_Q.out_features // d, d).transpose(0, 1).sigmoid()
    V = module.W_V(x).view(n, module.W_Q.out_features // d, d).transpose(0, 1)
    above = torch.einsum("hnk,hkv->hnv", Q, torch.einsum("hnk,hnv->hkv", K, V))
    below = torch.einsum("hnk,hk->hn", Q, K.sum(dim=1)).unsqueeze(-1) + EPSILON
    out = (above / below).transpose(0, 1).reshape(n, -1)
    return module.norm(module.W_O(out) + x)


def cross_attention(
    module: CrossAttention, x: Tensor, other: Tensor, i: Tensor, j: Tensor, edges: Tensor
) -> Tensor:
    """LN(x + CrossAttn(x, other) W_O) on (edges, heads, d) tensors."""
    (n, d), m = x.shape, other.shape[0]
    Q = module.W_Q(x).view(n, module.W_Q.out_features // d, d)
    K = module.W_K(other).view(m, module.W_Q.out_features // d, d)
    V = module.W_V(other).view(m, module.W_Q.out_features // d, d)
    if hasattr(module, "edge_map"):
        E = module.edge_map(edges).view(edges.shape[0], Q.shape[1], d)
    else:
        E = edges.view(-1, 1, 1) * module.W_E
    scores = Q[i] * K[j] / d**0.5 * E  # (e, heads, d)
    attention = scores.sum(dim=-1, keepdim=True).clamp(-CLAMP, CLAMP).exp()
    out = torch.zeros_like(Q).index_add(0, i, attention * V[j])
    total = torch.zeros_like(Q[..., :1]).index_add(0, i, attention)
    out = (out / (total + EPSILON)).view(n, -1)
    return module.norm(module.W_O(out) + x)


def update(side: Side, x: Tensor, other: Tensor, i: Tensor, j: Tensor, edges: Tensor) -> Tensor:
    """One layer for one node type."""
    attended = []
    if side.self_attention is not None:
        attended.append(self_attention(side.self_attention, x))
    if side.cross_attention is not None:
        attended.append(cross_attention(side.cross_attention, x, other, i, j, edges))
    fused = side.fusion_norm(side.fusion(torch.cat(attended, dim=-1)).relu())
    return side.norm(side.outer(side.inner(fused).relu()) + fused)


class StraightforwardDualAttention(nn.Module):
    """Dual attention for one graph, as published; all layers for all nodes."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: BipartiteGraph) -> Tensor:
        backbone = self.model.backbone
        V = backbone.variable_embedding(backbone.variable_norm(graph.variable_features))
        C = backbone.constraint_embedding(backbone.constraint_norm(graph.constraint_features))
        edges = backbone.edge_norm(graph.edge_values)
        if hasattr(backbone, "edge_embedding"):
            edges = backbone.edge_embedding(edges.unsqueeze(1))
        row, column = graph.edge_index
        for layer in backbone.layers:
            V, C = (
                update(layer.variables, V, C, column, row, edges),
                update(layer.constraints, C, V, row, column, edges),
            )
        return _head(self.model, graph, V, C)


def convolve(
    module: HalfConvolution, x: Tensor, other: Tensor, i: Tensor, j: Tensor, edges: Tensor
) -> Tensor:
    """One half-convolution, its last map applied to every edge."""
    joint = module.target(x)[i] + module.edge(edges) + module.source(other)[j]
    message = module.message(module.message_norm(joint).relu())
    sums = torch.zeros_like(x).index_add(0, i, message)
    return module.output(torch.cat([module.sum_norm(sums), x], dim=-1))


class StraightforwardGNN(nn.Module):
    """The bipartite graph network for one graph, as published for PyTorch."""

    def __init__(self, model: GraphModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, graph: BipartiteGraph) -> Tensor:
        backbone = self.model.backbone
        V = backbone.variable_embedding(backbone.variable_norm(graph.variable_features))
        C = backbone.constraint_embedding(backbone.constraint_norm(graph.constraint_features))
        edges = backbone.edge_norm(graph.edge_values).unsqueeze(1)
        row, column = graph.edge_index
        for step, convolution in enumerate(backbone.convolutions):
            if step % 2 == 0:
                C = convolve(convolution, C, V, row, column, edges)
            else:
                V = convolve(convolution, V, C, column, row, edges)
        return _head(self.model, graph, V, C)


def _head(model: GraphModel, graph: BipartiteGraph, V: Tensor, C: Tensor) -> Tensor:
    if model.task == "instance":
        return model.head(V, C, graph.variable_ptr, graph.constraint_ptr)
    return model.head(V)
