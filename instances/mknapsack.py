"""Multiple knapsack after Fukunaga: which items go into which knapsack, for the most profit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Ints, Milp, ParameterError, binary_program

SCHEMES = ("uncorrelated", "weakly_correlated", "strongly_correlated", "subset_sum")


@dataclass(frozen=True)
class Knapsacks:
    """Parameters of a multiple knapsack."""

    items: int = 100
    knapsacks: int = 6
    min_weight: int = 10
    max_weight: int = 19
    scheme: str = "weakly_correlated"  # how profits follow weights: see SCHEMES

    def __post_init__(self) -> None:
        if self.items < 1 or self.knapsacks < 1:
            raise ParameterError(
                f"items {self.items}, knapsacks {self.knapsacks}: expected at least 1 each"
            )
        if not 1 <= self.min_weight <= self.max_weight:
            raise ParameterError(
                f"min_weight {self.min_weight}, max_weight {self.max_weight}: "
                "expected 1 <= min_weight <= max_weight"
            )
        if self.scheme not in SCHEMES:
            raise ParameterError(f"scheme {self.scheme}: expected one of {', '.join(SCHEMES)}")


def generate(p: Knapsacks, draw: Draw) -> Milp:
    """Make one multiple knapsack."""
    weights = draw.integers(p.min_weight, p.max_weight, p.items)
    profits = _profits(p, weights, draw)
    # Half of the total weight fits: random shares of it, and the rest for the last knapsack.
    total = int(weights.sum())
    low, high = int(0.4 * total / p.knapsacks), int(0.6 * total / p.knapsacks)
    capacities = draw.integers(low, high, p.knapsacks - 1)
    capacities = np.append(capacities, int(0.5 * total) - capacities.sum())

    # Columns knapsack by knapsack; a capacity row a knapsack, then a row an item.
    column = np.arange(p.knapsacks * p.items)
    rows = np.concatenate([column // p.items, p.knapsacks + column % p.items])
    values = np.concatenate([np.tile(weights, p.knapsacks), np.ones(len(column))])
    shape = (p.knapsacks + p.items, len(column))
    return binary_program(
        f"MultipleKnapsack-{p.items}-{p.knapsacks}",
        maximise=True,
        objective=np.tile(profits, p.knapsacks).astype(np.float64),
        matrix=csr_array((values, (rows, np.tile(column, 2))), shape=shape),
        left=-np.inf,
        right=np.concatenate([capacities, np.ones(p.items)]),
        variable_names=[f"x_{k}_{i}" for k in range(p.knapsacks) for i in range(p.items)],
        row_names=[f"capacity_{k}" for k in range(p.knapsacks)]
        + [f"item_{i}" for i in range(p.items)],
    )


def _profits(p: Knapsacks, weights: Ints, draw: Draw) -> Ints:
    spread = p.max_weight + 1 - p.min_weight
    if p.scheme == "uncorrelated":
        return draw.integers(p.min_weight, p.max_weight, p.items)
    if p.scheme == "weakly_correlated":
        low, high = np.maximum(weights - spread, 1), weights + spread - 1
        return low + np.floor(draw.uniform(p.items) * (high - low + 1)).astype(np.int64)
    return weights + spread if p.scheme == "strongly_correlated" else weights


FAMILY = Family(
    name="mknapsack",
    title="multiple knapsack (Fukunaga)",
    parameters=Knapsacks,
    generate=generate,
    presets={
        "tiny": sizes(Knapsacks(30, 3), transfer=Knapsacks(40, 3)),
        "small": sizes(Knapsacks(40, 4), transfer=Knapsacks(60, 4)),
        "paper": sizes(Knapsacks(100, 6), transfer=Knapsacks(100, 12)),
    },
)
