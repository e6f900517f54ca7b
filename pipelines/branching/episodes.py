"""The episodes of a split: what each yields, which are done, and where they end.

Episode k of a split depends on the collection's seed, the split and k alone. Episodes are kept in
their order and cut at the number of samples asked for, so the finished split is the same however
many processes made it and however often they were stopped.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from learn2branch.errors import WorkError
from pipelines import parallel
from pipelines.progress import say

SPLITS = ("train", "valid", "test")
_INSTANCES = {"train": 10_000, "valid": 2_000, "test": 2_000}  # of a family, then from the first on
_BARREN = 200  # episodes in a row without a sample, after which there is no hope


@dataclass(frozen=True)
class Plan:
    """All that decides what an episode yields, as a worker needs it."""

    family: str | None
    preset: str | None  # of the family's instances
    split: str
    seed: int
    expert_probability: float
    max_samples: int | None
    node_limit: int | None
    time_limit: float
    protocol: str
    backend: str
    first_episode: int = 0
    parameters: tuple[tuple[str, Any], ...] = ()  # of SCIP, beside the protocol's
    instances: tuple[str, ...] = ()  # a user's own, of this split
    data: str = "data"


@dataclass
class SplitSummary:
    """What a split of the store holds."""

    samples: int
    episodes: int
    bytes: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # instance -> why
    out_of_time: list[str] = field(default_factory=list)  # instances that met the time limit
    # Of the episodes collected now, summed over the workers:
    made: int = 0  # samples, also those that were not needed
    solve_seconds: float = 0.0  # in solves, with all that is done in them
    our_seconds: float = 0.0  # of observing in them, and of recording after them
    work_seconds: float = 0.0  # in all


class Episodes:
    """The episodes of one split: which are done, which come next, and where to cut."""

    def __init__(self, folder: Path, plan: Plan, count: int) -> None:
        self.folder, self.plan, self.count = folder, plan, count
        self.done: dict[int, int] = {}  # episode -> samples
        self.cut: set[int] = set()  # episodes of which the end was cut off
        self.failed: dict[int, str] = {}
        self.summary = SplitSummary(0, 0)
        self._look_up()
        self._forget_cut_episodes()

    def path(self, episode: int) -> Path:
        return self.folder / f"episode-{episode:06d}.npz"

    def _look_up(self) -> None:
        """Find the shards that are there; one that cannot be trusted is made again."""
        from learn2branch.shards import ShardError, read_header

        self.folder.mkdir(parents=True, exist_ok=True)
        for part in self.folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        for path in sorted(self.folder.glob("episode-*.npz")):
            try:
                header = read_header(path)
            except ShardError as error:
                say(f"{error}; collecting it again")
                path.unlink()
                continue
            episode = header["provenance"]["episode"]
            self.done[episode] = header["samples"]
            if not header["provenance"]["whole"]:
                self.cut.add(episode)

    def _forget_cut_episodes(self) -> None:
        """A cut episode is good only where it was cut to reach the very count wanted now."""
        last, total = self._prefix()
        for episode in self.cut:
            if not (episode == last and total == self.count):
                del self.done[episode]
                self.path(episode).unlink()

    def _prefix(self) -> tuple[int, int]:
        """Return the last of the first episodes that suffice (or that are done), and their sum."""
        total = 0
        for episode in itertools.count(self.plan.first_episode):
            if total >= self.count or (episode not in self.done and episode not in self.failed):
                return episode - 1, total
            total += self.done.get(episode, 0)
        raise AssertionError

    def is_satisfied(self) -> bool:
        """Tell whether the first episodes, without a gap, have as many samples as wanted."""
        return self._prefix()[1] >= self.count

    def to_do(self) -> Iterator[int]:
        """Yield the episodes to begin, in order, until those that are done suffice."""
        for episode in itertools.count(self.plan.first_episode):
            if self.is_satisfied():
                return
            if episode not in self.done:
                yield episode

    def take(self, episode: int, outcome: parallel.Outcome[Made]) -> int:
        """Keep what a worker made of an episode; return the number of samples."""
        from learn2branch.runs import replace_file

        made = outcome.value
        if made is None:
            self.failed[episode] = outcome.error or "no result"
        else:
            replace_file(self.path(episode), made.shard)
            self.done[episode] = made.samples
            self.summary.solve_seconds += made.solve_seconds
            self.summary.made += made.samples
            self.summary.our_seconds += made.our_seconds
            self.summary.work_seconds += made.seconds
            if made.status == "timelimit":
                self.summary.out_of_time.append(instance_of(self.plan, episode))
        self._give_up_if_hopeless()
        return made.samples if made else 0

    def _give_up_if_hopeless(self) -> None:
        """Stop where nothing comes: instances solved at the root, or all failing."""
        last, _ = self._prefix()
        limit = _BARREN
        if self.plan.instances:
            limit = min(_BARREN, max(20, 2 * len(self.plan.instances)))
        recent = range(last, last - limit, -1)
        if last + 1 - self.plan.first_episode >= limit and not any(
            self.done.get(episode, 0) for episode in recent
        ):
            if len(self.failed) >= limit:
                why = f"all failed, the last with: {self.failed[max(self.failed)]}"
            else:
                solved = f", {len(self.failed)} failed" if self.failed else ""
                why = (
                    f"they are solved without branching{solved}, or --expert-prob is too low; "
                    "use harder instances"
                )
            raise WorkError(
                f"the last {limit} episodes of {self.plan.split} ({self._barren_instances(recent)})"
                f" gave no sample: {why}"
            )

    def _barren_instances(self, episodes: range) -> str:
        """Name the instances of episodes, as many as a sentence can hold."""
        names = list(dict.fromkeys(instance_of(self.plan, episode) for episode in episodes))
        more = f" and {len(names) - 2} more" if names[2:] else ""
        return f"of {', '.join(names[:2])}{more}"

    def finish(self) -> SplitSummary:
        """Cut the last episode to the count, and remove what was begun beyond it."""
        from learn2branch.shards import Shard, read_shard, write_shard

        last, total = self._prefix()
        if total > self.count:
            keep = self.done[last] - (total - self.count)
            shard = read_shard(self.path(last))
            provenance = {**shard.provenance, "whole": False}
            write_shard(self.path(last), Shard(shard.samples[:keep], provenance))
            self.done[last] = keep
        for episode in [e for e in self.done if e > last]:
            self.path(episode).unlink()
            del self.done[episode]
        self.summary.samples = sum(self.done.values())
        self.summary.episodes = len(self.done)
        self.summary.bytes = sum(self.path(episode).stat().st_size for episode in self.done)
        self.summary.failed = {
            f"{instance_of(self.plan, episode)} (episode {episode})": error
            for episode, error in sorted(self.failed.items())
            if episode <= last
        }
        return self.summary


# --- in a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """What a worker sends back: the file, as one process alone writes to the store."""

    shard: bytes
    samples: int
    status: str
    seconds: float  # of the whole task
    solve_seconds: float
    our_seconds: float  # of it and after it, in observing and recording


def collect_episode(task: tuple[Plan, int]) -> Made:
    """Solve the instance of an episode, which is made if it is missing, and encode its samples."""
    import torch

    from learn2branch import __version__
    from learn2branch.shards import Shard, encode_shard

    torch.set_num_threads(1)
    began = time.perf_counter()
    plan, episode = task
    instance = instance_of(plan, episode)
    _make_if_missing(plan, episode, Path(instance))
    split = SPLITS.index(plan.split)
    seeds = np.random.SeedSequence([plan.seed, split, episode]).generate_state(2) % (2**31 - 1) + 1
    seed, coin_seed = (int(number) for number in seeds)
    result = _backend(plan.backend)(
        instance,
        seed=seed,
        coin_seed=coin_seed,
        expert_probability=plan.expert_probability,
        protocol=plan.protocol,
        parameters=dict(plan.parameters),
        time_limit=plan.time_limit,
        node_limit=plan.node_limit,
        max_samples=plan.max_samples,
    )
    solved = time.perf_counter()
    provenance = {
        "instance": instance,
        "instance_hash": hashlib.blake2b(Path(instance).read_bytes(), digest_size=16).hexdigest(),
        "family": plan.family,
        "split": plan.split,
        "episode": episode,
        "whole": True,
        "collection_seed": plan.seed,
        "seed": seed,
        "coin_seed": coin_seed,
        "expert_probability": plan.expert_probability,
        "max_samples": plan.max_samples,
        "node_limit": plan.node_limit,
        "protocol": plan.protocol,
        "backend": plan.backend,
        "scip": result.scip_version,
        "learn2branch": __version__,
        "status": result.status,
        "nodes": result.nodes,
        "decisions": result.decisions,
    }
    shard = encode_shard(Shard(result.samples, provenance))
    now = time.perf_counter()
    return Made(
        shard=shard,
        samples=len(result.samples),
        status=result.status,
        seconds=now - began,
        solve_seconds=result.seconds,
        our_seconds=now - solved + result.observe_seconds,
    )


def _backend(name: str) -> Any:
    if name == "ecole":
        return importlib.import_module("solver_plugins.ecole").run_episode
    from solver_plugins.episode import run_episode

    return run_episode


def instance_of(plan: Plan, episode: int) -> str:
    """Return the file of an episode's instance; after the last one the first comes again."""
    if plan.instances:
        return plan.instances[episode % len(plan.instances)]
    number = episode % _INSTANCES[plan.split] + 1
    folder = f"{plan.data}/{plan.family}/{plan.preset}/{plan.split}"
    return f"{folder}/instance_{number:04d}.lp"


def _make_if_missing(plan: Plan, episode: int, path: Path) -> None:
    if plan.family is None or path.exists():
        return
    from instances.order import Order, fulfil

    path.parent.mkdir(parents=True, exist_ok=True)
    number = episode % _INSTANCES[plan.split] + 1
    fulfil(Order(plan.family, plan.preset or "paper", plan.split, 0, number, {}, path))
