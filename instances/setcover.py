"""Set cover after Balas and Ho: the cheapest columns that cover every row.

Every column covers at least two rows and every row is covered at least once, as in Ecole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csc_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Milp, ParameterError, binary_program


@dataclass(frozen=True)
class SetCover:
    """Parameters of a set cover."""

    rows: int = 400
    columns: int = 750
    density: float = 0.05  # share of non-zeros
    max_cost: int = 100  # costs are uniform integers from 1 to here

    def __post_init__(self) -> None:
        least = max(2 * self.columns, self.rows)
        if self.rows < 2 or not 0 < least <= self.nonzeros <= self.rows * self.columns:
            raise ParameterError(
                f"rows {self.rows}, columns {self.columns}, density {self.density}: expected "
                f"{least} to {self.rows * self.columns} non-zeros, two a column and one a row"
            )
        if self.max_cost < 1:
            raise ParameterError(f"max_cost {self.max_cost}: expected at least 1")

    @property
    def nonzeros(self) -> int:
        """How many non-zeros the matrix has."""
        return int(self.rows * self.columns * self.density)


def generate(p: SetCover, draw: Draw) -> Milp:
    """Make one set cover."""
    nonzeros = p.nonzeros
    # How many rows each column covers: two, and its share of the rest.
    spare = draw.distinct(p.columns * (p.rows - 2), np.array([nonzeros - 2 * p.columns]))
    counts = 2 + np.bincount(spare % p.columns, minlength=p.columns)
    # Walking the columns, the first entries run once through all rows, so that each is covered.
    covered = draw.distinct(p.rows, counts, start=draw.permutation(p.rows))
    starts = np.concatenate([[0], np.cumsum(counts)])
    matrix = csc_array((np.ones(nonzeros), covered, starts), shape=(p.rows, p.columns)).tocsr()
    matrix.sort_indices()
    return binary_program(
        f"SetCover-{p.rows}-{p.columns}",
        maximise=False,
        objective=draw.integers(1, p.max_cost, p.columns).astype(np.float64),
        matrix=matrix,
        left=1.0,
        right=np.inf,
        variable_names=[f"x_{j}" for j in range(p.columns)],
        row_names=[f"cover_{i}" for i in range(p.rows)],
    )


FAMILY = Family(
    name="setcover",
    title="set cover (Balas and Ho)",
    parameters=SetCover,
    generate=generate,
    presets={
        "tiny": sizes(SetCover(300, 250), transfer=SetCover(350, 300)),
        "small": sizes(SetCover(350, 500), transfer=SetCover(400, 600)),
        "paper": sizes(SetCover(400, 750), transfer=SetCover(500, 1000)),
    },
)
