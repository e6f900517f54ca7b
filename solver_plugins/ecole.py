"""The same episode on Ecole's branching environment, where Ecole is installed.

Ecole brings its own SCIP (8); it lives beside PySCIPOpt's in one process, and no model passes from
one to the other. Tested with Ecole 0.8.1 on SCIP 8.0.4 and NumPy 1.26: it was made before NumPy 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.samples import Sample
from solver_plugins.episode import Behaviour, Episode
from solver_plugins.parameters import PROTOCOLS, read_parameters, seed_parameters
from solver_plugins.reading import read_model

# Where Ecole has NaN because there is no incumbent, our states have 0.
_INCUMBENT = slice(
    STATE.variable.index("incumbent_value"), STATE.variable.index("average_incumbent_value") + 1
)
_INFINITY = 1e20  # SCIP's; minus that is the score of a candidate the expert was stopped before


def run_episode(
    instance: str | Path,
    *,
    seed: int = 0,
    coin_seed: int | None = None,
    expert_probability: float = 0.05,
    behaviour: Behaviour | None = None,
    follow_expert: bool = True,
    protocol: str = "gasse",
    parameters: Mapping[str, Any] | None = None,
    time_limit: float | None = 3600.0,
    node_limit: int | None = None,
    max_samples: int | None = None,
    on_sample: Callable[[Sample], None] | None = None,
) -> Episode:
    """Solve an instance once on Ecole and collect samples; as `solver_plugins.run_episode`.

    `seed` is given to the environment, which draws SCIP's seeds from it. Ecole does not tell
    SCIP's status: it is inferred from the stage and the limits.
    """
    ecole = import_ecole()
    if not 0.0 <= expert_probability <= 1.0:
        raise InputError(f"expert_probability is {expert_probability}: give one between 0 and 1")
    read_model(instance).free()  # Ecole's own reading accepts broken files or says too little
    if protocol not in PROTOCOLS:
        raise InputError(
            f"unknown protocol {protocol!r}: choose one of {', '.join(sorted(PROTOCOLS))}"
        )
    used = dict(PROTOCOLS[protocol])
    if time_limit is not None:
        used |= {"limits/time": float(time_limit), "timing/clocktype": 2}
    if node_limit is not None:
        used["limits/totalnodes"] = node_limit
    used |= read_parameters(parameters or {})
    environment = ecole.environment.Branching(
        observation_function=None, reward_function=ecole.reward.NNodes(), scip_params=used
    )
    environment.seed(seed % 2**32)
    coin_seed = seed if coin_seed is None else coin_seed
    episode = Episode(str(instance), seed, coin_seed, used)
    version = ecole.version.get_scip_lib_version()
    episode.scip_version = f"{version.major}.{version.minor}.{version.patch}"
    walk = _Walk(ecole, environment, episode, behaviour)
    coin = np.random.default_rng(coin_seed)
    keep = on_sample or episode.samples.append

    started = time.perf_counter()
    _, action_set, reward, done, _ = environment.reset(str(instance))
    episode.nodes = int(reward)
    while not done:
        candidates = torch.from_numpy(np.asarray(action_set).astype(np.int64))
        choice = None
        if coin.random() < expert_probability:
            sample = walk.ask_expert(candidates)
            if sample is not None:
                keep(sample)
                episode.num_samples += 1
                choice = sample.choice
        if episode.num_samples == max_samples:
            break
        if choice is None or not follow_expert:
            choice = walk.explore(candidates)
        _, action_set, reward, done, _ = environment.step(int(candidates[choice]))
        episode.decisions += 1
        episode.nodes += int(reward)
    episode.seconds = time.perf_counter() - started

    model = environment.model
    for name in seed_parameters(seed):
        used[name] = model.get_param(name)
    episode.dual_bound = model.dual_bound
    episode.objective = model.primal_bound if abs(model.primal_bound) < _INFINITY else None
    if model.is_solved:
        episode.status = "infeasible" if episode.objective is None else "optimal"
    elif not done:
        episode.status = "userinterrupt"
    elif node_limit is not None and episode.nodes >= node_limit:
        episode.status = "totalnodelimit"
    elif time_limit is not None and episode.seconds >= time_limit:
        episode.status = "timelimit"
    return episode


class _Walk:
    """What is asked at the nodes of one episode."""

    def __init__(
        self, ecole: Any, environment: Any, episode: Episode, behaviour: Behaviour | None
    ) -> None:
        self.environment, self.episode, self.behaviour = environment, episode, behaviour
        self.state = ecole.observation.NodeBipartite(cache=False)  # the cache misses new cuts
        self.strong_branching = ecole.observation.StrongBranchingScores()
        self.pseudocosts = ecole.observation.Pseudocosts()
        self.edges: tuple[Tensor, Tensor] | None = None

    def ask_expert(self, candidates: Tensor) -> Sample | None:
        state = self.observe()
        pseudocosts = self._scores(self.pseudocosts, candidates)
        started = time.perf_counter()
        scores = self._scores(self.strong_branching, candidates)
        self.episode.expert_seconds += time.perf_counter() - started
        if (scores <= -_INFINITY).any() or not torch.isfinite(scores).all():
            return None
        return Sample(state, candidates, scores, int(scores.argmax()), pseudocosts)

    def explore(self, candidates: Tensor) -> int:
        if self.behaviour is None:
            return int(self._scores(self.pseudocosts, candidates).argmax())
        state = self.observe()
        started = time.perf_counter()
        choice = int(self.behaviour(state, candidates).argmax())
        self.episode.behaviour_seconds += time.perf_counter() - started
        return choice

    def observe(self) -> BipartiteGraph:
        started = time.perf_counter()
        state, self.edges = graph_of(
            self.state.extract(self.environment.model, False), known_edges=self.edges
        )
        self.episode.observe_seconds += time.perf_counter() - started
        return state

    def _scores(self, function: Any, candidates: Tensor) -> Tensor:
        scores = np.asarray(function.extract(self.environment.model, False), dtype=np.float64)
        return torch.from_numpy(scores[candidates.numpy()])


def graph_of(
    observation: Any, known_edges: tuple[Tensor, Tensor] | None = None
) -> tuple[BipartiteGraph, tuple[Tensor, Tensor]]:
    """Turn Ecole's `NodeBipartiteObs` into a state, and return its edges for the next one.

    Edges equal to the known ones are the known tensors themselves.
    """
    variables = torch.from_numpy(np.asarray(observation.variable_features).astype(np.float32))
    variables[:, _INCUMBENT] = variables[:, _INCUMBENT].nan_to_num(nan=0.0)
    constraints = torch.from_numpy(np.asarray(observation.row_features).astype(np.float32))
    edges = (
        torch.from_numpy(np.asarray(observation.edge_features.indices).astype(np.int64)),
        torch.from_numpy(np.asarray(observation.edge_features.values).astype(np.float32)),
    )
    if known_edges is not None and all(map(torch.equal, edges, known_edges)):
        edges = known_edges
    return BipartiteGraph(constraints, *edges, variables), edges


def import_ecole() -> Any:
    """Import Ecole, or say what to do where that is not possible."""
    try:
        import ecole
    except ModuleNotFoundError as error:
        if error.name != "ecole":
            raise
        raise InputError(
            "Ecole is not installed: pip install learn2branch[ecole] (needs SCIP 8 with headers), "
            "install it from conda-forge, or use the default backend"
        ) from None
    except ImportError as error:
        raise InputError(
            f"Ecole is installed but cannot be imported ({error}): see that it finds its SCIP 8 "
            "and a NumPy below 2, or use the default backend"
        ) from error
    return ecole
