"""The learning library: graphs, backbones, policies, samples and training. Knows no solver."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from learn2branch.errors import InputError, WorkError

if TYPE_CHECKING:
    from learn2branch.graph import BipartiteGraph
    from learn2branch.models import build_model
    from learn2branch.policy import export_policy, load_model, load_policy

__version__ = version("learn2branch")

__all__ = [
    "BipartiteGraph",
    "InputError",
    "WorkError",
    "__version__",
    "build_model",
    "export_policy",
    "load_model",
    "load_policy",
]

# Imported on first use: they need torch, which takes two seconds, and `l2b --help` should not.
_HOMES = {
    "BipartiteGraph": "learn2branch.graph",
    "build_model": "learn2branch.models",
    "export_policy": "learn2branch.policy",
    "load_model": "learn2branch.policy",
    "load_policy": "learn2branch.policy",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'learn2branch' has no attribute {name!r}")
