"""`Milps`: many small MILPs of one size, stacked into arrays; what the tiny generators make.

All are minimised, all their bounds are finite. Nothing here knows a solver.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

LESS, EQUAL, GREATER = 0, 1, 2  # the senses of a constraint, as Chen et al. number them


@dataclass(frozen=True)
class Milps:
    """k instances with n variables, m constraints and e non-zeros each, sorted by constraint."""

    objective: NDArray[np.float64]  # (k, n)
    is_integer: NDArray[np.bool_]  # (k, n)
    lower: NDArray[np.float64]  # (k, n)
    upper: NDArray[np.float64]  # (k, n)
    rhs: NDArray[np.float64]  # (k, m)
    sense: NDArray[np.int8]  # (k, m), LESS, EQUAL or GREATER
    row: NDArray[np.int64]  # (k, e), the constraint of each non-zero
    column: NDArray[np.int64]  # (k, e), its variable
    value: NDArray[np.float64]  # (k, e), its coefficient

    def __len__(self) -> int:
        return self.objective.shape[0]

    @property
    def variables(self) -> int:
        """n, the variables of each instance."""
        return self.objective.shape[1]

    @property
    def constraints(self) -> int:
        """m, the constraints of each instance."""
        return self.rhs.shape[1]

    @property
    def nonzeros(self) -> int:
        """e, the non-zero coefficients of each instance."""
        return self.value.shape[1]

    def arrays(self) -> dict[str, NDArray]:
        """Return the arrays by name, as they are stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __getitem__(self, which: slice | NDArray) -> Milps:
        """Return some of the instances, by slice, positions or mask."""
        return Milps(**{name: array[which] for name, array in self.arrays().items()})

    def permuted(self, seed: int) -> Milps:
        """Return the same instances with variables and constraints renumbered at random."""
        rng = np.random.default_rng(seed)
        new_row = rng.permuted(np.tile(np.arange(self.constraints), (len(self), 1)), axis=1)
        new_column = rng.permuted(np.tile(np.arange(self.variables), (len(self), 1)), axis=1)

        def moved(array: NDArray, to: NDArray) -> NDArray:
            result = np.empty_like(array)
            np.put_along_axis(result, to, array, axis=1)
            return result

        row, column, value = in_row_order(
            np.take_along_axis(new_row, self.row, axis=1),
            np.take_along_axis(new_column, self.column, axis=1),
            self.value,
            self.variables,
        )
        return Milps(
            moved(self.objective, new_column),
            moved(self.is_integer, new_column),
            moved(self.lower, new_column),
            moved(self.upper, new_column),
            moved(self.rhs, new_row),
            moved(self.sense, new_row),
            row,
            column,
            value,
        )


def stack(milps: list[Milps]) -> Milps:
    """Join stacks of equal sizes into one, in order."""
    names = [field.name for field in fields(Milps)]
    return Milps(**{name: np.concatenate([getattr(one, name) for one in milps]) for name in names})


def in_row_order(
    row: NDArray, column: NDArray, value: NDArray, variables: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Sort each instance's non-zeros by constraint, then by variable."""
    order = np.argsort(row * variables + column, axis=1)
    return tuple(np.take_along_axis(array, order, axis=1) for array in (row, column, value))  # type: ignore[return-value]
