"""Samples: what the expert did in a state, and the store that keeps them on disk."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from learn2branch.graph import BipartiteGraph


@dataclass(frozen=True)
class Sample:
    """One decision of the expert: in this state, among these candidates, with these scores."""

    state: BipartiteGraph
    candidates: Tensor  # (k,) int64, variables of the state
    scores: Tensor  # (k,) float64, the expert's, one a candidate
    choice: int  # position of the expert's choice in `candidates`
    pseudocosts: Tensor | None = None  # (k,) float64, SCIP's pseudocost scores, a baseline
