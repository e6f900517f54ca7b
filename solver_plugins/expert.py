"""Strong branching as a teacher: scores for every candidate of the node SCIP is at.

The scores are those of SCIP's own rule `vanillafullstrong`; asking for them teaches the search
nothing: no bound, no pseudocost, no history changes.
"""

from __future__ import annotations

import math

import torch
from pyscipopt import SCIP_LPSOLSTAT, Model
from torch import Tensor

_NO_ITERATION_LIMIT = 2**31 - 1


def strong_branching_scores(model: Model) -> Tensor:
    """Return the expert's scores (float64) of all LP candidates, in the order SCIP lists them.

    The order is that of `model.getLPBranchCands()`. As in SCIP, a failing LP or a reached limit
    ends the work early: the candidates not scored are -inf.
    """
    candidates, *_ = model.getLPBranchCands()
    scores = [-math.inf] * len(candidates)
    if candidates and model.getLPSolstat() == SCIP_LPSOLSTAT.OPTIMAL:
        bound = model.getLPObjVal()
        model.startStrongbranch()
        try:
            for i, candidate in enumerate(candidates):
                down, up, *_, failed = model.getVarStrongbranch(
                    candidate, _NO_ITERATION_LIMIT, idempotent=True
                )
                if failed:  # an LP error, or SCIP was asked to stop
                    break
                gains = [max(down, bound) - bound, max(up, bound) - bound]
                scores[i] = model.getBranchScoreMultiple(candidate, gains)
        finally:
            model.endStrongbranch()
    return torch.tensor(scores, dtype=torch.float64)


def pseudocost_scores(model: Model) -> Tensor:
    """Return SCIP's pseudocost scores (float64) of all LP candidates, in SCIP's order."""
    candidates, values, *_ = model.getLPBranchCands()
    scores = [model.getVarPseudocostScore(c, v) for c, v in zip(candidates, values, strict=True)]
    return torch.tensor(scores, dtype=torch.float64)
