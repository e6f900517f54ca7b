"""SCIP's parameters for solves that can be compared: the papers' protocol, seeds, a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyscipopt import Model

from learn2branch.errors import InputError
from solver_plugins.reading import silent_stderr

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


def set_parameters(model: Model, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Set SCIP parameters by name, text read as the parameter's own type; return what was set."""
    chosen = {}
    for name, value in parameters.items():
        try:
            current = model.getParam(name)
        except KeyError:
            raise InputError(f"SCIP has no parameter {name!r}") from None
        try:
            chosen[name] = _as_type_of(current, value)
            with silent_stderr():
                model.setParam(name, chosen[name])
        except Exception:
            raise InputError(f"SCIP's parameter {name} cannot be set to {value!r}") from None
    return chosen


def read_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return SCIP parameters with their own types; refuse what SCIP would, before a solve."""
    return set_parameters(Model(), parameters)


def _as_type_of(current: Any, value: Any) -> Any:
    if not isinstance(value, str) or isinstance(current, str):
        return value
    if isinstance(current, bool):
        return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
    return type(current)(value)
