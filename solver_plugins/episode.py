"""An episode: one solve of an instance that yields samples of what the expert does.

At each node a coin decides whether the expert is asked, recorded and followed; at the others the
search explores, by pseudocosts unless another behaviour is given. Nothing here writes files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pyscipopt import SCIP_RESULT, Branchrule, Model
from torch import Tensor

from learn2branch.errors import InputError
from learn2branch.graph import BipartiteGraph
from learn2branch.samples import Sample
from solver_plugins.expert import pseudocost_scores, strong_branching_scores
from solver_plugins.observation import Observer
from solver_plugins.parameters import apply_protocol, set_parameters
from solver_plugins.reading import read_model

# Maps a state and its candidates to scores, one a candidate; the highest is branched on.
Behaviour = Callable[[BipartiteGraph, Tensor], Tensor]

_FIRST = 536_870_911  # a priority above every rule of SCIP, as Ecole's


@dataclass
class Episode:
    """How an episode went: its samples (unless a callback took them) and its summary."""

    instance: str
    seed: int  # of SCIP
    coin_seed: int  # of the coin flips
    parameters: dict[str, Any]  # set in SCIP, seeds included
    samples: list[Sample] = field(default_factory=list)
    num_samples: int = 0
    decisions: int = 0  # nodes that were branched on here
    status: str = "unknown"  # SCIP's
    nodes: int = 0
    objective: float | None = None  # of the incumbent, in the user's sense
    dual_bound: float | None = None
    scip_version: str = ""
    seconds: float = 0.0  # wall time of the solve
    observe_seconds: float = 0.0
    expert_seconds: float = 0.0
    behaviour_seconds: float = 0.0


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
    """Solve an instance once and collect samples of the expert.

    The expert is asked with `expert_probability` at each node and followed; elsewhere the variable
    with the best pseudocost score is taken, or the best by `behaviour`. With
    `follow_expert=False` the behaviour decides everywhere and the expert is only recorded, as
    DAgger needs it. `parameters` are SCIP's and are set after those of the protocol. The solve ends
    with a limit or after `max_samples` samples. `on_sample` receives each sample as it comes;
    without it they are kept in `samples`.
    """
    if not 0.0 <= expert_probability <= 1.0:
        raise InputError(f"expert_probability is {expert_probability}: give one between 0 and 1")
    if max_samples is not None and max_samples < 1:
        raise InputError(f"max_samples is {max_samples}: give a positive number, or None")
    model = read_model(instance)
    used = apply_protocol(model, protocol, seed, time_limit)
    if node_limit is not None:
        used["limits/totalnodes"] = node_limit
        model.setParam("limits/totalnodes", node_limit)
    used |= set_parameters(model, parameters or {})
    coin_seed = seed if coin_seed is None else coin_seed
    episode = Episode(str(instance), seed, coin_seed, used)
    rule = _EpisodeRule(
        episode, expert_probability, behaviour, follow_expert, max_samples, on_sample
    )
    model.includeBranchrule(
        rule, "learn2branch_episode", "records the expert", _FIRST, maxdepth=-1, maxbounddist=1.0
    )
    started = time.perf_counter()
    try:
        model.optimize()
        episode.seconds = time.perf_counter() - started
        rule.raise_error()
        episode.status = model.getStatus()
        episode.nodes = model.getNTotalNodes()
        episode.scip_version = scip_version(model)
        if model.getNSols() > 0:
            episode.objective = model.getObjVal()
        episode.dual_bound = model.getDualbound()
    finally:
        model.free()  # now, not when Python happens to look for the cycle of model and rule
    return episode


def scip_version(model: Model) -> str:
    """Return the version of the SCIP behind a model, as in 10.0.0."""
    return f"{model.getMajorVersion()}.{model.getMinorVersion()}.{model.getTechVersion()}"


class _EpisodeRule(Branchrule):
    def __init__(
        self,
        episode: Episode,
        expert_probability: float,
        behaviour: Behaviour | None,
        follow_expert: bool,
        max_samples: int | None,
        on_sample: Callable[[Sample], None] | None,
    ) -> None:
        self.episode = episode
        self.expert_probability = expert_probability
        self.behaviour = behaviour
        self.follow_expert = follow_expert
        self.max_samples = max_samples
        self.on_sample = on_sample or episode.samples.append
        self.coin = np.random.default_rng(episode.coin_seed)
        self.observer = Observer()
        self.error: BaseException | None = None

    def branchexeclp(self, allowaddcons: bool) -> dict[str, Any]:
        # An exception must not cross SCIP: the solve is ended and the error raised after it.
        try:
            return {"result": self._branch()}
        except BaseException as error:
            self.error = error
            self.model.interruptSolve()
            return {"result": SCIP_RESULT.DIDNOTRUN}

    def branchexecps(self, allowaddcons: bool) -> dict[str, Any]:
        return {"result": SCIP_RESULT.DIDNOTRUN}

    def branchexecext(self, allowaddcons: bool) -> dict[str, Any]:
        return {"result": SCIP_RESULT.DIDNOTRUN}

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def _branch(self) -> Any:
        candidates, *_ = self.model.getLPBranchCands()
        if not candidates:
            return SCIP_RESULT.DIDNOTRUN
        choice = None
        if self.coin.random() < self.expert_probability:
            choice = self._ask_expert()
        if choice is None or not self.follow_expert:
            choice = self._explore()
        self.model.branchVar(candidates[choice])
        self.episode.decisions += 1
        return SCIP_RESULT.BRANCHED

    def _ask_expert(self) -> int | None:
        state, indices = self._observe()
        pseudocosts = pseudocost_scores(self.model)
        started = time.perf_counter()
        scores = strong_branching_scores(self.model)
        self.episode.expert_seconds += time.perf_counter() - started
        if torch.isinf(scores).any():  # SCIP is about to stop, or an LP failed: no full answer
            return None
        choice = int(scores.argmax())
        self.on_sample(Sample(state, indices, scores, choice, pseudocosts))
        self.episode.num_samples += 1
        if self.episode.num_samples == self.max_samples:
            self.model.interruptSolve()
        return choice

    def _explore(self) -> int:
        if self.behaviour is None:
            return int(pseudocost_scores(self.model).argmax())
        state, indices = self._observe()
        started = time.perf_counter()
        choice = int(self.behaviour(state, indices).argmax())
        self.episode.behaviour_seconds += time.perf_counter() - started
        return choice

    def _observe(self) -> tuple[BipartiteGraph, Tensor]:
        started = time.perf_counter()
        state = self.observer.observe(self.model)
        indices = self.observer.candidates(self.model)
        self.episode.observe_seconds += time.perf_counter() - started
        return state, indices
