"""The two kernels of dual attention: linear self-attention and sparse cross-attention.

Each stands here twice: plain, as the paper writes it, dense and slow, for the tests; and fast.

The fast ones attend over the raw embeddings `x` of the other nodes, for every head, instead of over
keys and values projected from them. That is exact, since both projections are linear and can be
moved to the query and to the output (docs/backbone.md); the backbone does so with its weights.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from learn2branch.kernels import KERNELS, address, usable
from learn2branch.nonzeros import NonZeros, Rows

EPSILON = 1e-8  # the paper's, in both denominators
CLAMP = 5.0  # scores stay in [-5, 5], as in the authors' code: no sum can overflow


def self_attention_plain(Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Equation 5 of the paper for one graph and one head, O(n^2): (n, d) each -> (n, d)."""
    M = Q.sigmoid() @ K.sigmoid().T
    return (M / (M.sum(dim=1, keepdim=True) + EPSILON)) @ V


def cross_attention_plain(Q: Tensor, K: Tensor, V: Tensor, w: Tensor, A: Tensor) -> Tensor:
    """Equation 11 of the paper for one head, O(mn): Q (n, d); K, V (m, d); w (d,); A (n, m)."""
    p = A * ((Q * w) @ K.T) / Q.shape[1] ** 0.5
    M = p.clamp(-CLAMP, CLAMP).exp() * (A != 0)
    return (M / (M.sum(dim=1, keepdim=True) + EPSILON)) @ V


def self_attention(
    Q: Tensor, K: Tensor, x: Tensor, query_sizes: list[int], sizes: list[int]
) -> Tensor:
    """Linear self-attention within each graph: sigma(Q) (sigma(K)^T x) / (sigma(Q) sum sigma(K)).

    `K` is (n, heads * d), `x` is (n, d), both with `sizes` nodes of each graph; `Q` and the result
    are (k, heads * d), with `query_sizes` nodes of each.
    """
    if usable(x.shape[1], Q, K, x) and x.shape[1] % 16 == 0:
        return _SelfAttention.apply(Q, K, x, _pointers(query_sizes), _pointers(sizes))
    d = x.shape[1]
    heads = Q.shape[1] // d
    parts = (Q.sigmoid().split(query_sizes), K.sigmoid().split(sizes), x.split(sizes))
    results = []
    for q, k, v in zip(*parts, strict=True):
        q = q.view(-1, heads, d).transpose(0, 1)  # (heads, n, d)
        k = k.view(-1, heads, d).transpose(0, 1)
        total = k.sum(dim=1).unsqueeze(-1)
        result = (q @ (k.transpose(1, 2) @ v)) / (q @ total + EPSILON)
        results.append(result.transpose(0, 1).reshape(-1, heads * d))
    return torch.cat(results)


def _pointers(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)])


class _SelfAttention(torch.autograd.Function):
    """`self_attention` in C, graph by graph."""

    @staticmethod
    def forward(
        ctx: Any, Q: Tensor, K: Tensor, x: Tensor, query_pointers: Tensor, pointers: Tensor
    ) -> Tensor:
        Q, K, x, d = Q.sigmoid().contiguous(), K.sigmoid().contiguous(), x.contiguous(), x.shape[1]
        below = x.new_empty(Q.shape[0], Q.shape[1] // d)
        out = torch.empty_like(Q)
        graphs = pointers.shape[0] - 1
        sizes = (x.dtype == torch.float64, torch.get_num_threads(), graphs, Q.shape[1] // d, d)
        tensors = (pointers, query_pointers, Q, K, x, below, out)
        KERNELS.self_attention_forward(*sizes, *map(address, tensors))
        ctx.save_for_backward(*tensors)
        ctx.sizes = sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, grad = ctx.saved_tensors, grad.contiguous()
        grads = tuple(torch.empty_like(tensor) for tensor in tensors[2:5])
        KERNELS.self_attention_backward(*ctx.sizes, *map(address, (*tensors, grad, *grads)))
        return *grads, None, None


def cross_attention(q: Tensor, x: Tensor, entries: NonZeros, backend: str = "auto") -> Tensor:
    """Attend along the non-zeros: q (n, heads * d) over x (m, d) -> (n, heads * d).

    Row i gets, per head, the mean of x_j over its non-zeros a_ij, weighted with
    exp(clamp(a_ij <q_i, x_j>)). `q` brings the paper's scaling and coefficient vector with it.
    """
    constant = not entries.rows.values.requires_grad  # the kernel has no gradient for them
    if backend != "scatter" and constant and usable(x.shape[1], q, x):
        return _CrossAttention.apply(q, x, entries)
    p = edge_scores(q, x, entries.rows) * entries.rows.values[:, None]
    return weighted_mean(p, x, entries.rows, backend)


def edge_scores(q: Tensor, x: Tensor, rows: Rows) -> Tensor:
    """Return <q_i, x_j> for every entry and head, (e, heads)."""
    d = x.shape[1]
    q = q.view(q.shape[0], q.shape[1] // d, d)
    return torch.einsum("ehd,ed->eh", q[rows.row_of_entry()], x[rows.columns])


def weighted_mean(p: Tensor, x: Tensor, rows: Rows, backend: str = "auto") -> Tensor:
    """Average x_j over each row's entries with the weights exp(clamp(p)): (rows, heads * d)."""
    weight = p.clamp(-CLAMP, CLAMP).exp()
    message = (weight.unsqueeze(-1) * x[rows.columns].unsqueeze(1)).flatten(1)
    total = row_sums(weight, rows, backend) + EPSILON
    sums = row_sums(message, rows, backend)
    return (sums.view(*total.shape, x.shape[1]) / total.unsqueeze(-1)).flatten(1)


def row_sums(entries: Tensor, rows: Rows, backend: str = "auto") -> Tensor:
    """Sum what stands at the entries, (e, k), over each row: (rows, k)."""
    index = rows.row_of_entry()
    if backend == "scatter":
        from torch_scatter import scatter

        return scatter(entries, index, dim=0, dim_size=rows.num_rows, reduce="sum")
    return entries.new_zeros(rows.num_rows, entries.shape[1]).index_add(0, index, entries)


class _CrossAttention(torch.autograd.Function):
    """`cross_attention` in C, in one pass over the rows; backward in one more over the columns."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, x: Tensor, entries: NonZeros) -> Tensor:
        q, x = q.contiguous(), x.contiguous()
        rows, (n, width), d = entries.rows, q.shape, x.shape[1]
        values = rows.values.to(x.dtype)
        weight = x.new_empty(width // d, rows.columns.shape[0])
        total = x.new_empty(n, width // d)
        out = torch.empty_like(q)
        KERNELS.attention_forward(
            x.dtype == torch.float64,
            torch.get_num_threads(),
            n,
            width // d,
            d,
            *map(address, (rows.pointers, rows.columns, values, q, x, weight, total, out)),
        )
        ctx.save_for_backward(q, x, values, weight, total, out)
        ctx.entries = entries
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        q, x, values, weight, total, out = ctx.saved_tensors
        rows, columns = ctx.entries.rows, ctx.entries.columns
        n, (m, d), heads = q.shape[0], x.shape, q.shape[1] // x.shape[1]
        grad = grad.contiguous()
        grad_q, grad_x = torch.empty_like(q), torch.empty_like(x)
        to_value, to_key = torch.empty_like(weight), torch.empty_like(weight)
        sizes = (x.dtype == torch.float64, torch.get_num_threads())
        KERNELS.attention_backward_rows(
            *(*sizes, n, heads, d),
            *map(address, (rows.pointers, rows.columns, values, x, weight, total, out, grad)),
            *map(address, (to_value, to_key, grad_q)),
        )
        KERNELS.attention_backward_columns(
            *(*sizes, m, heads, d),
            *map(address, (columns.pointers, columns.columns, columns.twins, q, grad)),
            *map(address, (to_value, to_key, grad_x)),
        )
        return grad_q, grad_x, None
