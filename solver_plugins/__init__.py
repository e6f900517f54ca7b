"""Everything that touches a solver: observing, asking the expert, branching, searching."""

from solver_plugins.branchrule import NeuralBranchrule, include_branchrule
from solver_plugins.episode import Episode, run_episode
from solver_plugins.expert import strong_branching_scores
from solver_plugins.observation import Observer, observe
from solver_plugins.parameters import apply_protocol

__all__ = [
    "Episode",
    "NeuralBranchrule",
    "Observer",
    "apply_protocol",
    "include_branchrule",
    "observe",
    "run_episode",
    "strong_branching_scores",
]
