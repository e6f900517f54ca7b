"""SCIP's parameters for a solve that can be compared: the protocol of the papers, and the seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyscipopt import Model

from learn2branch.errors import InputError

# Gasse et al. (2019): cuts at the root only, no restarts, the rest of SCIP as it is. "default" is
# SCIP untouched.
PROTOCOLS: dict[str, dict[str, Any]] = {
    "gasse": {"separating/maxrounds": 0, "presolving/maxrestarts": 0},
    "default": {},
}


def seed_parameters(seed: int) -> dict[str, Any]:
    """Return SCIP's randomness for a seed, as Ecole does it: permuted, with three seeds drawn."""
    permutation, shift, lp = np.random.default_rng(seed).integers(1, 2**31 - 1, size=3).tolist()
    return {
        "randomization/permuteconss": True,
        "randomization/permutevars": True,
        "randomization/permutationseed": permutation,
        "randomization/randomseedshift": shift,
        "randomization/lpseed": lp,
    }


def apply_protocol(
    model: Model,
    protocol: str = "gasse",
    seed: int | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    """Set a protocol, a seed and a time limit (wall seconds), and return what was set.

    Without a seed SCIP keeps its own order and seeds.
    """
    if protocol not in PROTOCOLS:
        raise InputError(
            f"unknown protocol {protocol!r}: choose one of {', '.join(sorted(PROTOCOLS))}"
        )
    parameters = dict(PROTOCOLS[protocol])
    if seed is not None:
        parameters |= seed_parameters(seed)
    if time_limit is not None:
        parameters |= {"limits/time": float(time_limit), "timing/clocktype": 2}
    model.setParams(parameters)
    return parameters
