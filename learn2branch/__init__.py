"""The learning library: graphs, backbones, policies, samples and training. Knows no solver."""

from importlib.metadata import version

from learn2branch.errors import InputError, WorkError
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
