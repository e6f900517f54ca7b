"""Capacitated facility location after Cornuejols et al., unsplittable as in the paper.

Which facilities to open, and which one serves each customer, within the capacities.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Floats, Milp, ParameterError, stable_decimals


@dataclass(frozen=True)
class Facilities:
    """Parameters of a facility location; Ecole's defaults are continuous and not truncated."""

    customers: int = 35
    facilities: int = 35
    ratio: float = 5.0  # total capacity over total demand
    continuous: bool = False  # whether a customer may be served by several facilities
    truncate: bool = True  # whole fixed costs, and capacities cut instead of rounded

    def __post_init__(self) -> None:
        if self.customers < 1 or self.facilities < 1 or self.ratio < 1:
            raise ParameterError(
                f"customers {self.customers}, facilities {self.facilities}, ratio {self.ratio}: "
                "expected at least 1 each"
            )


def generate(p: Facilities, draw: Draw) -> Milp:
    """Make one facility location."""
    n, m = p.customers, p.facilities
    demand = draw.integers(5, 35, n).astype(np.float64)
    capacity = draw.integers(10, 160, m).astype(np.float64)
    scale = draw.integers(100, 110, m).astype(np.float64)
    fixed: Floats = scale * np.sqrt(capacity) + draw.integers(0, 90, m)
    across = draw.uniform((n, 1)) - draw.uniform((1, m))
    along = draw.uniform((n, 1)) - draw.uniform((1, m))
    transport = stable_decimals(demand[:, None] * 10 * np.sqrt(across * across + along * along))
    capacity = capacity * p.ratio * demand.sum() / capacity.sum()
    if p.truncate:
        fixed, capacity = np.floor(fixed), np.floor(capacity)
    else:
        fixed, capacity = stable_decimals(fixed), np.rint(capacity)

    # Columns: open_j for the facilities, then serve_i_j customer by customer.
    open_j, serve = np.arange(m), m + np.arange(n * m).reshape(n, m)
    demand_rows = (np.arange(n).repeat(m), serve.ravel(), np.ones(n * m))
    capacity_row = n + np.arange(m)
    capacity_rows = (capacity_row.repeat(n), serve.T.ravel(), np.tile(demand, m))
    closed_rows = (capacity_row, open_j, -capacity)
    total_row = (np.full(m, n + m), open_j, capacity)
    link_row = n + m + 1 + np.arange(n * m)
    link_rows = (link_row, serve.ravel(), np.ones(n * m))
    link_open = (link_row, np.tile(open_j, n), -np.ones(n * m))
    blocks = (demand_rows, capacity_rows, closed_rows, total_row, link_rows, link_open)
    rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Milp(
        name=f"CapacitatedFacilityLocation-{n}-{m}",
        maximise=False,
        objective=np.concatenate([fixed, transport.ravel()]),
        lower=np.zeros(m + n * m),
        upper=np.ones(m + n * m),
        binary=np.repeat([True, not p.continuous], [m, n * m]),
        matrix=csr_array((values, (rows, columns)), shape=(n + m + 1 + n * m, m + n * m)),
        left=np.concatenate(
            [np.ones(n), np.full(m, -np.inf), [demand.sum()], np.full(n * m, -np.inf)]
        ),
        right=np.concatenate([np.full(n, np.inf), np.zeros(m), [np.inf], np.zeros(n * m)]),
        variable_names=[f"open_{j}" for j in range(m)]
        + [f"serve_{i}_{j}" for i in range(n) for j in range(m)],
        row_names=[f"demand_{i}" for i in range(n)]
        + [f"capacity_{j}" for j in range(m)]
        + ["total_demand"]
        + [f"closed_{i}_{j}" for i in range(n) for j in range(m)],
    )


FAMILY = Family(
    name="facilities",
    title="capacitated facility location (Cornuejols), unsplittable",
    parameters=Facilities,
    generate=generate,
    presets={
        "tiny": sizes(Facilities(20, 15, ratio=3), transfer=Facilities(25, 15, ratio=3)),
        "small": sizes(Facilities(25, 20), transfer=Facilities(35, 20)),
        "paper": sizes(Facilities(35, 35), transfer=Facilities(60, 35)),
    },
)
