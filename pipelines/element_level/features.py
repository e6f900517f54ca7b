"""An instance as the graph that element models read, after Predict-and-Search (Han et al. 2023).

Columns are those of `learn2branch.features.ELEMENT`. The objective is one more constraint, the
last. Each column is scaled to 0..1 within the instance, so that models carry over between sizes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from learn2branch.features import ELEMENT
from learn2branch.graph import BipartiteGraph
from solver_plugins.arrays import Floats, MilpArrays

_POSITION_BITS = sum(name.startswith("position_") for name in ELEMENT.variable)


def element_graph(arrays: MilpArrays, position: bool = False) -> BipartiteGraph:
    """Return the graph of an instance; `position` numbers its variables, for placement.

    Differences to the published scripts, which do not change what the columns mean: the edge of
    the objective belongs to the objective (there to the first constraint), negative objective
    coefficients are not cut off at 0, and extremes of empty rows and columns are 0 (there 1e20).
    Edges carry the coefficient divided by the largest of its row, where the scripts have 1.
    """
    matrix, (m, n) = arrays.matrix, arrays.matrix.shape
    rows = np.repeat(np.arange(m), np.diff(matrix.indptr))
    columns, values = matrix.indices.astype(np.int64), matrix.data

    degree = np.bincount(columns, minlength=n).astype(np.float64)
    largest, smallest = np.full(n, -np.inf), np.full(n, np.inf)
    np.maximum.at(largest, columns, values)
    np.minimum.at(smallest, columns, values)
    variable = np.column_stack(
        [
            arrays.objective,
            np.bincount(columns, values, minlength=n) / max(m, 1),
            degree,
            np.where(degree > 0, largest, 0.0),
            np.where(degree > 0, smallest, 0.0),
            arrays.is_binary,
        ]
    )
    bits = _positions(arrays.names) if position else np.zeros((n, _POSITION_BITS))

    in_objective = np.flatnonzero(arrays.objective)
    objective = arrays.objective[in_objective]
    length = np.diff(matrix.indptr)
    sides = arrays.sides
    constraint = np.column_stack(
        [
            np.bincount(rows, values, minlength=m) / np.maximum(length, 1),
            length,
            np.where(np.isfinite(sides), sides, 0.0),
            arrays.senses,
        ]
    )
    mean_objective = objective.mean() if len(objective) else 0.0
    constraint = np.vstack([constraint, [mean_objective, len(objective), 0.0, 0.0]])

    edge_index = np.stack(
        [
            np.concatenate([rows, np.full(len(in_objective), m)]),
            np.concatenate([columns, in_objective]),
        ]
    )
    edge_values = np.concatenate([values, objective])
    scale = np.zeros(m + 1)
    np.maximum.at(scale, edge_index[0], np.abs(edge_values))
    return BipartiteGraph(
        torch.from_numpy(_scaled(constraint)),
        torch.from_numpy(edge_index.astype(np.int64)),
        torch.from_numpy((edge_values / scale[edge_index[0]]).astype(np.float32)),
        torch.from_numpy(np.hstack([_scaled(variable), bits]).astype(np.float32)),
    )


def _scaled(columns: Floats) -> npt.NDArray[np.float32]:
    """Map each column to 1e-5..1, as published; a constant column becomes 1e-5."""
    low, high = columns.min(axis=0), columns.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return np.clip((columns - low) / span, 1e-5, 1.0).astype(np.float32)


def _positions(names: tuple[str, ...]) -> Floats:
    """Return the place of each variable in the order of the names, as bits, the lowest first.

    Instances of a family whose variables mean the same have the same names: x_3_1 keeps its place.
    """
    place = np.empty(len(names), np.int64)
    place[np.argsort(np.array(names))] = np.arange(len(names))
    return ((place[:, None] >> np.arange(_POSITION_BITS)) & 1).astype(np.float64)
