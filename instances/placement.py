"""Balanced item placement: items into containers, every resource of each container well used.

The formulation is the paper's, the sizes are those of the ML4CO competition, whose instances are
not public any more; the distributions are our choice (docs/instances.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Floats, Milp, ParameterError, stable_decimals


@dataclass(frozen=True)
class Placement:
    """Parameters of an item placement."""

    items: int = 105
    containers: int = 10
    dimensions: int = 3
    max_size: int = 100  # an item's size is a uniform integer from 1 to here,
    spread: float = 0.2  # and its size in each dimension strays from that by this share at most
    slack: float = 1.25  # capacity of a container, in average loads
    target: float = 1.2  # load a container should have, in average loads: above 1, all fall short

    def __post_init__(self) -> None:
        if self.containers < 1 or self.dimensions < 1 or self.items < self.containers:
            raise ParameterError(
                f"items {self.items}, containers {self.containers}, dimensions "
                f"{self.dimensions}: expected at least 1 each, and an item a container"
            )
        if self.slack < 1 or self.target <= 0:
            raise ParameterError(
                f"slack {self.slack}, target {self.target}: expected at least 1, and more than 0"
            )
        if self.max_size < 1 or not 0 <= self.spread <= 1:
            raise ParameterError(
                f"max_size {self.max_size}, spread {self.spread}: expected at least 1, and 0 to 1"
            )


def generate(p: Placement, draw: Draw) -> Milp:
    """Make one item placement."""
    n, m, d = p.items, p.containers, p.dimensions
    stray = 1 + p.spread * (2 * draw.uniform((d, n)) - 1)
    size = np.ceil(draw.integers(1, p.max_size, n) * stray)
    average = size.sum(axis=1) / m
    capacity = np.maximum(np.ceil(p.slack * average), _greedy_load(size, m))
    share = stable_decimals(size / (p.target * average[:, None]))  # d_ik: 1 is a balanced load
    alpha = draw.integers(1, 3, d).astype(np.float64)
    beta = draw.integers(5, 15, d).astype(np.float64)

    # Columns: x_i_j item by item, y_j_k container by container, z_k.
    x = np.arange(n * m).reshape(n, m)
    y = n * m + np.arange(m * d).reshape(m, d)
    z = n * m + m * d + np.arange(d)
    container_rows = np.arange(m * d).reshape(m, d)  # one for each j and k
    rows_x = np.repeat(container_rows, n)
    columns_x = np.repeat(x.T, d, axis=0).ravel()
    place = (np.repeat(np.arange(n), m), x.ravel(), np.ones(n * m))
    fit = (n + rows_x, columns_x, np.tile(size.ravel(), m))
    fill = (n + m * d + rows_x, columns_x, np.tile(share.ravel(), m))
    lack = (n + m * d + container_rows.ravel(), y.ravel(), np.ones(m * d))
    most_y = (n + 2 * m * d + container_rows.ravel(), y.ravel(), np.ones(m * d))
    most_z = (n + 2 * m * d + container_rows.ravel(), np.tile(z, m), -np.ones(m * d))
    blocks = (place, fit, fill, lack, most_y, most_z)
    rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    shape = (n + 3 * m * d, n * m + m * d + d)
    free, binary = np.full(m * d, np.inf), n * m
    pairs = [f"{j}_{k}" for j in range(m) for k in range(d)]
    return Milp(
        name=f"ItemPlacement-{n}-{m}-{d}",
        maximise=False,
        objective=np.concatenate([np.zeros(binary), np.tile(alpha, m), beta]),
        lower=np.zeros(shape[1]),
        upper=np.concatenate([np.ones(binary), np.full(shape[1] - binary, np.inf)]),
        binary=np.arange(shape[1]) < binary,
        matrix=csr_array((values, (rows, columns)), shape=shape),
        left=np.concatenate([np.ones(n), -free, np.ones(m * d), -free]),
        right=np.concatenate([np.ones(n), np.tile(capacity, m), free, np.zeros(m * d)]),
        variable_names=[f"x_{i}_{j}" for i in range(n) for j in range(m)]
        + [f"y_{pair}" for pair in pairs]
        + [f"z_{k}" for k in range(d)],
        row_names=[f"place_{i}" for i in range(n)]
        + [f"{kind}_{pair}" for kind in ("fit", "fill", "most") for pair in pairs],
    )


def _greedy_load(size: Floats, containers: int) -> Floats:
    """Return the largest load in each dimension when items go where least is: it must fit."""
    load = np.zeros((len(size), containers))
    for item in np.argsort(-size.sum(axis=0), kind="stable"):
        load[:, np.argmin(load.max(axis=0))] += size[:, item]
    return np.asarray(load.max(axis=1))


FAMILY = Family(
    name="placement",
    title="balanced item placement",
    parameters=Placement,
    generate=generate,
    presets={
        "tiny": sizes(Placement(12, 3, 2)),
        "small": sizes(Placement(16, 3, 2)),
        "paper": sizes(Placement(105, 10, 3)),
    },
    counts={"paper": {"train": 400, "valid": 100, "test": 100}},
)
