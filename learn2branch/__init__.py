"""The learning library: graphs, backbones, policies, samples and training. Knows no solver."""

from importlib.metadata import version

from learn2branch.errors import InputError, WorkError
from learn2branch.graph import BipartiteGraph

__version__ = version("learn2branch")

__all__ = ["BipartiteGraph", "InputError", "WorkError", "__version__"]
