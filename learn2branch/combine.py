"""What follows the two attentions in a layer: residuals, norms, their fusion, the feed-forward net.

Plain here, which defines it, and as one compiled kernel that keeps a tile of nodes in the cache.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import layer_norm

from learn2branch.kernels import KERNELS, address, usable

MATRICES = 5  # of the weights: the first ones


class Combination(NamedTuple):
    """The weights: matrices (in, out), then vectors (d,)."""

    W_s: Tensor  # (heads * d, d), after self-attention
    W_c: Tensor  # (heads * d, d), after cross-attention
    W_f: Tensor  # (2 d, d), fusion
    W_1: Tensor  # (d, inner)
    W_2: Tensor  # (inner, d)
    bias: Tensor  # of the fusion
    gain_s: Tensor
    shift_s: Tensor
    gain_c: Tensor
    shift_c: Tensor
    gain_f: Tensor
    shift_f: Tensor
    gain: Tensor
    shift: Tensor


def combine_plain(x: Tensor, by_self: Tensor, by_cross: Tensor, w: Combination) -> Tensor:
    """LN(f + relu(f W_1) W_2), f = LN(relu([s c] W_f + b)), s = LN(x + by_self W_s), c likewise."""
    width = x.shape[1:]
    s = layer_norm(x + by_self @ w.W_s, width, w.gain_s, w.shift_s)
    c = layer_norm(x + by_cross @ w.W_c, width, w.gain_c, w.shift_c)
    f = torch.cat([s, c], dim=1) @ w.W_f + w.bias
    f = layer_norm(f.relu(), width, w.gain_f, w.shift_f)
    return layer_norm(f + (f @ w.W_1).relu() @ w.W_2, width, w.gain, w.shift)


def combine(x: Tensor, by_self: Tensor, by_cross: Tensor, w: Combination) -> Tensor:
    """Do the same, compiled where that is possible: (n, d), two times (n, heads * d) -> (n, d)."""
    if usable(x.shape[1], x, by_self, by_cross, *w) and all(k % 16 == 0 for k in w.W_1.shape):
        return _Combine.apply(x, by_self, by_cross, *w)
    return combine_plain(x, by_self, by_cross, w)


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by_self: Tensor, by_cross: Tensor, *weights: Tensor) -> Tensor:
        x, by_self, by_cross = x.contiguous(), by_self.contiguous(), by_cross.contiguous()
        (n, d), (_, inner), threads = x.shape, weights[3].shape, torch.get_num_threads()
        chunks = torch.arange(threads + 1) * n // threads  # one for each thread
        flat = torch.cat([weight.reshape(-1) for weight in weights])
        kept, moments = x.new_empty(n, 4 * d + inner + 16), x.new_empty(n, 8)
        out = torch.empty_like(x)
        inputs = (chunks, torch.tensor([inner]), x, by_self, by_cross, flat, kept, moments)
        sizes = (x.dtype == torch.float64, threads, threads, by_self.shape[1] // d, d)
        KERNELS.combine_forward(*sizes, *map(address, (*inputs, out)))
        ctx.save_for_backward(*inputs, *weights)
        ctx.sizes = sizes
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        inputs, weights = ctx.saved_tensors[:8], ctx.saved_tensors[8:]
        transposed = torch.cat([weight.T.reshape(-1) for weight in weights[:MATRICES]])
        grads = tuple(torch.empty_like(tensor) for tensor in inputs[2:5])
        to_weights = grad.new_zeros(ctx.sizes[1], inputs[5].shape[0])
        KERNELS.combine_backward(
            *ctx.sizes, *map(address, (*inputs, transposed, grad.contiguous(), *grads, to_weights))
        )
        parts = to_weights.sum(0).split([weight.numel() for weight in weights])
        return *grads, *(
            part.view(weight.shape) for part, weight in zip(parts, weights, strict=True)
        )
