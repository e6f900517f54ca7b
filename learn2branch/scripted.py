"""What an exported file contains: the folded network for one graph, in plain torch operators.

These modules are scripted, so `torch.jit.load` alone runs them, without this package. They define
what a policy computes; the compiled kernels must agree with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from learn2branch.backbones.bgnn import BipartiteGNN, HalfConvolution
from learn2branch.backbones.dual_attention import (
    DualAttention,
    Layer,
    Side,
    fold_output,
    fold_query,
)
from learn2branch.heads import InstanceHead, VariableHead
from learn2branch.models import GraphModel
from learn2branch.normaliser import Normaliser


class Weights(nn.Module):
    """Named tensors, as buffers."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Tensor: ...

    def __init__(self, **tensors: Tensor) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().cpu().clone().contiguous())


class ScriptedSide(Weights):
    """One layer for one node type, folded."""

    def __init__(self, side: Side, edge_embedding: nn.Sequential | None, heads: int) -> None:
        none = torch.empty(0)
        tensors = dict.fromkeys(
            [
                *("self_query", "self_key", "self_output", "self_gain", "self_shift"),
                *("cross_query", "cross_key", "cross_output", "cross_gain", "cross_shift"),
                *("edge_map", "edge_bias"),
            ],
            none,
        )
        own, cross = side.self_attention, side.cross_attention
        if own is not None:
            tensors["self_query"], tensors["self_key"] = own.W_Q.weight.T, own.W_K.weight.T
            tensors["self_output"] = fold_output(own.W_V, own.W_O)
            tensors["self_gain"], tensors["self_shift"] = own.norm.weight, own.norm.bias
        if cross is not None:
            if edge_embedding is None:
                tensors["cross_query"] = fold_query(cross.W_Q, cross.W_K, cross.W_E)
            else:
                tensors["cross_query"] = cross.W_Q.weight.T / cross.W_Q.in_features**0.5
                tensors["cross_key"] = cross.W_K.weight.T
                last = edge_embedding[2]
                assert isinstance(last, nn.Linear)
                tensors["edge_map"] = last.weight.T @ cross.edge_map.weight.T
                tensors["edge_bias"] = last.bias @ cross.edge_map.weight.T
            tensors["cross_output"] = fold_output(cross.W_V, cross.W_O)
            tensors["cross_gain"], tensors["cross_shift"] = cross.norm.weight, cross.norm.bias
        super().__init__(
            **tensors,
            fusion=side.fusion.weight.T,
            fusion_bias=side.fusion.bias,
            fusion_gain=side.fusion_norm.weight,
            fusion_shift=side.fusion_norm.bias,
            inner=side.inner.weight.T,
            outer=side.outer.weight.T,
            gain=side.norm.weight,
            shift=side.norm.bias,
        )
        self.heads = heads
        self.has_self, self.has_cross = own is not None, cross is not None
        self.by_mlp = edge_embedding is not None

    def forward(
        self,
        x: Tensor,
        other: Tensor,
        pointers: Tensor,
        columns: Tensor,
        edges: Tensor,
        rows: Tensor | None,
    ) -> Tensor:
        target = x
        if rows is not None:
            target = x[rows]
        attended: list[Tensor] = []
        if self.has_self:
            attended.append(self.attend_self(target, x))
        if self.has_cross:
            attended.append(self.attend_cross(target, other, pointers, columns, edges))
        fused = (torch.cat(attended, dim=1) @ self.fusion + self.fusion_bias).relu()
        fused = layer_norm(fused, [x.shape[1]], self.fusion_gain, self.fusion_shift)
        out = fused + (fused @ self.inner).relu() @ self.outer
        return layer_norm(out, [x.shape[1]], self.gain, self.shift)

    def attend_self(self, target: Tensor, x: Tensor) -> Tensor:
        d = x.shape[1]
        query = torch.sigmoid(target @ self.self_query)
        key = torch.sigmoid(x @ self.self_key)
        out = target
        for h in range(self.heads):
            q, k = query[:, h * d : (h + 1) * d], key[:, h * d : (h + 1) * d]
            # Exact: (sigma(K)^T V) W_O = (sigma(K)^T x) (W_V W_O).
            values = (k.t() @ x) @ self.self_output[h * d : (h + 1) * d]
            out = out + (q @ values) / (q @ k.sum(dim=0).unsqueeze(1) + 1e-8)
        return layer_norm(out, [d], self.self_gain, self.self_shift)

    def attend_cross(
        self, target: Tensor, other: Tensor, pointers: Tensor, columns: Tensor, edges: Tensor
    ) -> Tensor:
        d, size = other.shape[1], [target.shape[0], other.shape[0]]
        query = target @ self.cross_query
        with_one = torch.cat([other, torch.ones_like(other[:, :1])], dim=1)
        out = target
        if columns.shape[0] > 0:
            if self.by_mlp:
                key, edge = other @ self.cross_key, edges @ self.edge_map + self.edge_bias
                row = torch.repeat_interleave(pointers.diff())
                p = (query[row] * key[columns] * edge).view(-1, self.heads, d).sum(dim=2)
            else:
                ones = torch.ones_like(edges)
                pattern = torch.sparse_csr_tensor(pointers, columns, ones, size)
                scores: list[Tensor] = []
                for h in range(self.heads):
                    q = query[:, h * d : (h + 1) * d]
                    product = torch.sparse.sampled_addmm(pattern, q, other.t(), beta=0.0)
                    scores.append(product.values() * edges)
                p = torch.stack(scores, dim=1)
            weight = p.clamp(-5.0, 5.0).exp()
            for h in range(self.heads):
                values = weight[:, h].contiguous()
                sums = torch.sparse_csr_tensor(pointers, columns, values, size) @ with_one
                mean = sums[:, :d] / (sums[:, d:] + 1e-8)
                out = out + mean @ self.cross_output[h * d : (h + 1) * d]
        return layer_norm(out, [d], self.cross_gain, self.cross_shift)


def csr(row: Tensor, column: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return row pointers, columns and the order of the edges."""
    order = torch.argsort(row * columns + column)
    count = torch.bincount(row, minlength=rows).cumsum(0)
    pointers = torch.cat([torch.zeros_like(count[:1]), count]) if rows > 0 else row.new_zeros([1])
    return pointers, column[order], order


def select(pointers: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pointers of some rows of a CSR matrix, and which entries they hold."""
    count = pointers.diff()[rows]
    ends = count.cumsum(0)
    row = torch.repeat_interleave(count)
    entries = torch.arange(row.shape[0], device=rows.device) + (pointers[rows] - ends + count)[row]
    return torch.cat([torch.zeros_like(pointers[:1]), ends]), entries


class Embedding(Weights):
    """The two-layer embedding, with the normaliser in its first weights."""

    def __init__(self, norm: Normaliser, layers: nn.Sequential) -> None:
        first, second = layers[0], layers[2]
        assert isinstance(first, nn.Linear) and isinstance(second, nn.Linear)
        super().__init__(
            # Exact: ((x + shift) * scale) W + b = x (scale W) + (shift scale W + b).
            first=(first.weight * norm.scale).T,
            first_bias=first.bias + first.weight @ (norm.scale * norm.shift),
            second=second.weight.T,
            second_bias=second.bias,
        )
        self.ends_with_relu = len(layers) == 4

    def forward(self, features: Tensor) -> Tensor:
        hidden = (features @ self.first + self.first_bias).relu()
        out = hidden @ self.second + self.second_bias
        return out.relu() if self.ends_with_relu else out


class Head(Weights):
    """Either head; without constraints it is the one on variables."""

    def __init__(self, head: VariableHead | InstanceHead) -> None:
        super().__init__(
            hidden=head.hidden.weight.T,
            hidden_bias=head.hidden.bias,
            out=head.out.weight.squeeze(0),
        )
        self.pools = isinstance(head, InstanceHead)

    def forward(self, variables: Tensor, constraints: Tensor) -> Tensor:
        x = variables
        if self.pools:
            variable_mean = variables.sum(dim=0, keepdim=True) / max(variables.shape[0], 1)
            constraint_mean = constraints.sum(dim=0, keepdim=True) / max(constraints.shape[0], 1)
            x = torch.cat([variable_mean, constraint_mean], dim=1)
        return (x @ self.hidden + self.hidden_bias).relu() @ self.out


class ScriptedDualAttention(Weights):
    """Dual attention with its head for one graph."""

    def __init__(self, model: GraphModel) -> None:
        backbone = model.backbone
        assert isinstance(backbone, DualAttention)
        mlp = getattr(backbone, "edge_embedding", None)
        super().__init__(
            edge_scale=backbone.edge_norm.scale,
            edge_weight=mlp[0].weight.T if mlp else torch.empty(0),
            edge_bias=mlp[0].bias if mlp else torch.empty(0),
        )
        self.by_mlp = mlp is not None
        self.variable_embedding = Embedding(backbone.variable_norm, backbone.variable_embedding)
        self.constraint_embedding = Embedding(
            backbone.constraint_norm, backbone.constraint_embedding
        )
        layers = [layer for layer in backbone.layers if isinstance(layer, Layer)]
        heads = model.config["heads"]
        self.variables = nn.ModuleList(ScriptedSide(t.variables, mlp, heads) for t in layers)
        self.constraints = nn.ModuleList(ScriptedSide(t.constraints, mlp, heads) for t in layers)
        self.head = Head(model.head)
        self.pools = model.task == "instance"

    def encode(self, values: Tensor) -> Tensor:
        edges = values * self.edge_scale
        if self.by_mlp:
            return (edges.unsqueeze(1) @ self.edge_weight + self.edge_bias).relu()
        return edges

    def forward(
        self,
        constraint_features: Tensor,
        edge_index: Tensor,
        edge_values: Tensor,
        variable_features: Tensor,
        candidates: Tensor | None = None,
    ) -> Tensor:
        if self.pools and candidates is not None:
            raise ValueError("a policy for instances takes no candidates")
        V = self.variable_embedding(variable_features)
        C = self.constraint_embedding(constraint_features)
        m, n = C.shape[0], V.shape[0]
        c_pointers, c_columns, c_order = csr(edge_index[0], edge_index[1], m, n)
        v_pointers, v_columns, v_order = csr(edge_index[1], edge_index[0], n, m)
        edges = self.encode(edge_values)
        c_edges, v_edges = edges[c_order], edges[v_order]
        last = len(self.variables) - 1
        rows: Tensor | None = None
        for t, (v_side, c_side) in enumerate(zip(self.variables, self.constraints)):  # noqa: B905
            # The last layer updates only what the head reads.
            if t == last and candidates is not None:
                rows = candidates
                v_pointers, entries = select(v_pointers, candidates)
                v_columns, v_edges = v_columns[entries], v_edges[entries]
            new_V = v_side(V, C, v_pointers, v_columns, v_edges, rows)
            if t < last or self.pools:
                C = c_side(C, V, c_pointers, c_columns, c_edges, None)
            V = new_V
        return self.head(V, C)


class ScriptedHalfConvolution(Weights):
    """A half-convolution with its scales in its weights."""

    def __init__(self, convolution: HalfConvolution) -> None:
        scale, sum_scale = convolution.message_norm.scale, convolution.sum_norm.scale
        first, last = convolution.output[0], convolution.output[2]
        assert isinstance(first, nn.Linear) and isinstance(last, nn.Linear)
        d = last.in_features
        # Exact: the sums pass three linear maps (message, scale, first) before the next ReLU.
        to_hidden = sum_scale * first.weight[:, :d]
        super().__init__(
            target=convolution.target.weight.T * scale,
            target_bias=convolution.target.bias * scale,
            source=convolution.source.weight.T * scale,
            edge=convolution.edge.weight.squeeze(1) * scale,
            sums=(to_hidden @ convolution.message.weight).T,
            degree=to_hidden @ convolution.message.bias,
            own=first.weight[:, d:].T,
            hidden_bias=first.bias,
            out=last.weight.T,
            out_bias=last.bias,
        )

    def forward(self, x: Tensor, other: Tensor, i: Tensor, j: Tensor, values: Tensor) -> Tensor:
        target, source = x @ self.target + self.target_bias, other @ self.source
        message = (target[i] + source[j] + values.unsqueeze(1) * self.edge).relu()
        sums = torch.zeros_like(target).index_add(0, i, message)
        degree = torch.bincount(i, minlength=x.shape[0]).to(x.dtype).unsqueeze(1)
        return self.update(x, sums, degree)

    def update(self, x: Tensor, sums: Tensor, degree: Tensor) -> Tensor:
        hidden = sums @ self.sums + degree * self.degree + x @ self.own + self.hidden_bias
        return hidden.relu() @ self.out + self.out_bias


class ScriptedBipartiteGNN(Weights):
    """The bipartite graph network with its head for one graph."""

    def __init__(self, model: GraphModel) -> None:
        backbone = model.backbone
        assert isinstance(backbone, BipartiteGNN)
        super().__init__(edge_scale=backbone.edge_norm.scale)
        self.variable_embedding = Embedding(backbone.variable_norm, backbone.variable_embedding)
        self.constraint_embedding = Embedding(
            backbone.constraint_norm, backbone.constraint_embedding
        )
        steps = [
            ScriptedHalfConvolution(convolution)
            for convolution in backbone.convolutions
            if isinstance(convolution, HalfConvolution)
        ]
        self.constraints, self.variables = nn.ModuleList(steps[::2]), nn.ModuleList(steps[1::2])
        self.head = Head(model.head)
        self.pools = model.task == "instance"

    def forward(
        self,
        constraint_features: Tensor,
        edge_index: Tensor,
        edge_values: Tensor,
        variable_features: Tensor,
        candidates: Tensor | None = None,
    ) -> Tensor:
        if self.pools and candidates is not None:
            raise ValueError("a policy for instances takes no candidates")
        V = self.variable_embedding(variable_features)
        C = self.constraint_embedding(constraint_features)
        row, column, values = edge_index[0], edge_index[1], edge_values * self.edge_scale
        for c_step, v_step in zip(self.constraints, self.variables):  # noqa: B905
            C = c_step(C, V, row, column, values)
            V = v_step(V, C, column, row, values)
        if candidates is not None:
            V = V[candidates]
        return self.head(V, C)


def script(model: GraphModel) -> torch.jit.ScriptModule:
    """Fold a trained model and compile it to TorchScript."""
    build = {"dualattn": ScriptedDualAttention, "bgnn": ScriptedBipartiteGNN}
    module = build[model.config["backbone"]](model).float().eval()
    return torch.jit.script(module)
