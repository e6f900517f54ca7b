"""The non-zeros of a graph, sorted by constraint and by variable, for kernels that walk rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learn2branch.kernels import KERNELS, address


@dataclass(frozen=True)
class Rows:
    """Compressed sparse rows: row i holds the entries `pointers[i]:pointers[i + 1]`."""

    pointers: Tensor  # (rows + 1,) int64
    columns: Tensor  # (e,) int64
    values: Tensor  # (e,) coefficients
    twins: Tensor  # (e,) int64, where the same non-zero stands in the transpose
    num_columns: int

    @property
    def num_rows(self) -> int:
        """Rows, empty ones included."""
        return self.pointers.shape[0] - 1

    def row_of_entry(self) -> Tensor:
        """Return the row of every entry, (e,)."""
        rows = torch.arange(self.num_rows, device=self.columns.device)
        return rows.repeat_interleave(self.pointers.diff(), output_size=self.columns.shape[0])


@dataclass(frozen=True)
class NonZeros:
    """One sparse matrix in both orders; `transpose` costs nothing."""

    rows: Rows
    columns: Rows

    @staticmethod
    def from_edges(edge_index: Tensor, values: Tensor, num_rows: int, num_columns: int) -> NonZeros:
        """Sort unsorted edges; row 0 of `edge_index` the matrix row, row 1 the column."""
        if edge_index.dtype != torch.int64 or edge_index.shape != (2, *values.shape):
            raise ValueError(
                "expected an int64 edge_index of shape (2, e) with edge values of shape (e,), not "
                f"{edge_index.dtype} {tuple(edge_index.shape)} with {tuple(values.shape)}"
            )
        if KERNELS is not None and edge_index.device.type == "cpu":
            return _sorted_by_counting(edge_index, values, num_rows, num_columns)
        row, column = edge_index
        by_row = torch.argsort(row * num_columns + column)
        by_column = torch.argsort(column * num_rows + row)
        place_in_rows, place_in_columns = torch.empty_like(by_row), torch.empty_like(by_row)
        count = torch.arange(row.shape[0], device=row.device)
        place_in_rows[by_row] = count
        place_in_columns[by_column] = count
        return NonZeros(
            Rows(
                _pointers(row, num_rows),
                column[by_row],
                values[by_row],
                place_in_columns[by_row],
                num_columns,
            ),
            Rows(
                _pointers(column, num_columns),
                row[by_column],
                values[by_column],
                place_in_rows[by_column],
                num_rows,
            ),
        )

    @property
    def transpose(self) -> NonZeros:
        """The same non-zeros with rows and columns exchanged."""
        return NonZeros(self.columns, self.rows)

    def select(self, rows: Tensor) -> NonZeros:
        """Keep some rows only, in the given order."""
        start, count = self.rows.pointers[rows], self.rows.pointers.diff()[rows]
        total = int(count.sum())
        row = torch.arange(rows.shape[0], device=rows.device)
        row = row.repeat_interleave(count, output_size=total)
        first = count.cumsum(0) - count
        entry = torch.arange(total, device=rows.device) + (start - first)[row]
        edge_index = torch.stack([row, self.rows.columns[entry]])
        return NonZeros.from_edges(
            edge_index, self.rows.values[entry], rows.shape[0], self.rows.num_columns
        )


def _pointers(index: Tensor, size: int) -> Tensor:
    return torch.nn.functional.pad(torch.bincount(index, minlength=size).cumsum(0), (1, 0))


def _sorted_by_counting(
    edge_index: Tensor, values: Tensor, num_rows: int, num_columns: int
) -> NonZeros:
    edge_index, edges = edge_index.contiguous(), values.shape[0]
    row_pointers = torch.empty(num_rows + 1, dtype=torch.int64)
    column_pointers = torch.empty(num_columns + 1, dtype=torch.int64)
    # Columns, rows, the two twins and the order of the edges by row.
    columns, rows, row_twins, column_twins, order = torch.empty((5, edges), dtype=torch.int64)
    if not KERNELS.sort_edges(
        edges,
        num_rows,
        num_columns,
        address(edge_index),
        address(row_pointers),
        address(columns),
        address(row_twins),
        address(column_pointers),
        address(rows),
        address(column_twins),
        address(order),
    ):
        raise IndexError("an edge points outside of the graph")
    row_values = values[order]
    return NonZeros(
        Rows(row_pointers, columns, row_values, row_twins, num_columns),
        Rows(column_pointers, rows, row_values[column_twins], column_twins, num_rows),
    )
