"""Shift and scale of raw features, estimated from training data before training ("prenorm")."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

SMALLEST_VARIANCE = 1e-8  # a column that varies less is constant: it is not scaled


class Normaliser(nn.Module):
    """(x + shift) * scale, neither of them trained; the identity until fitted."""

    shift: Tensor
    scale: Tensor

    def __init__(self, columns: int, shift: bool = True) -> None:
        super().__init__()
        self.shifts = shift
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * self.scale

    def fit(self, parts: Iterable[Tensor]) -> None:
        """Estimate mean and deviation over all rows of all parts, (rows, columns) each.

        Without a shift the scale is the inverse root mean square, so that zero stays zero.
        """
        count = 0
        mean = torch.zeros_like(self.shift, dtype=torch.float64)
        squares = torch.zeros_like(mean)  # sum of squared deviations (Chan et al. 1979)
        for part in parts:
            if part.shape[0] == 0:
                continue
            rows = part.to(torch.float64).view(part.shape[0], -1)
            centre = rows.mean(dim=0) if self.shifts else mean
            delta = centre - mean
            total = count + rows.shape[0]
            squares += (rows - centre).square().sum(dim=0)
            squares += delta.square() * count * rows.shape[0] / total
            mean = mean + delta * rows.shape[0] / total
            count = total
        if count == 0:
            return
        variance = squares / count
        variance[variance < SMALLEST_VARIANCE] = 1
        self.shift.copy_(-mean)
        self.scale.copy_(variance.rsqrt())

    def extra_repr(self) -> str:
        return f"{self.shift.shape[0]}" + ("" if self.shifts else ", shift=False")
