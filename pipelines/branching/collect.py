"""Collecting samples: episodes over the instances of a family or a user's own, into a store.

Episode k of a split depends on the collection's seed, the split and k alone. Episodes are kept in
their order and cut at the number of samples asked for, so the finished store is the same however
many processes made it and however often they were stopped.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from learn2branch.errors import InputError, WorkError
from pipelines import parallel
from pipelines.generate import generate
from pipelines.inputs import find_instances
from pipelines.progress import say, track

SPLITS = ("train", "valid", "test")
COLLECTION = "collection.json"


@dataclass(frozen=True)
class Preset:
    """How much to collect, and from what."""

    samples: int  # of the train split; valid and test get a fifth each
    expert_probability: float  # at each node
    instances: str  # the preset of the family that the instances have
    max_samples: int | None  # an episode: many short ones have more to teach than few long ones
    node_limit: int | None  # an episode


PRESETS = {
    "tiny": Preset(180, 0.3, "tiny", 10, 1_000),
    "small": Preset(5_000, 0.2, "paper", 20, 2_000),
    "paper": Preset(100_000, 0.05, "paper", None, 100_000),
}
# Where strong branching takes longer than on set cover, fewer samples fit into the same hour.
SMALL_SAMPLES = {"facilities": 4_000, "indset": 1_000}
_INSTANCES = {"train": 10_000, "valid": 2_000, "test": 2_000}  # of a family, then from the first on
_GRACE = 120.0  # seconds after its time limit when a solve counts as hanging
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


def collect(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    *,
    preset: str = "small",
    splits: Sequence[str] = SPLITS,
    samples: int | None = None,
    expert_probability: float | None = None,
    max_samples: int | None = None,
    node_limit: int | None = None,
    time_limit: float = 3600.0,
    seed: int = 0,
    jobs: int = 1,
    out: Path | str = "samples",
    name: str | None = None,
    data: Path | str = "data",
    backend: str = "scip",
    protocol: str = "gasse",
    parallel_backend: str = "loky",
    cluster: str | None = None,
) -> tuple[Path, dict[str, SplitSummary]]:
    """Collect samples of the splits; return the store and what these splits of it hold.

    What is there already from the same settings is kept; another collection is refused. Splits
    collected one after the other may differ in their settings. Raises KeyboardInterrupt after
    Ctrl-C, with everything finished kept.
    """
    if (problem is None) == (not instances):
        raise InputError("name a family with --problem, or your own files with --instances")
    if backend == "ecole":  # asked for here once, before it fails in every worker
        importlib.import_module("solver_plugins.ecole").import_ecole()
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset}: expected one of {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    if preset == "small" and samples is None:
        samples = SMALL_SAMPLES.get(problem or "")
    own = find_instances(instances) if instances else []
    plans = {
        split: Plan(
            family=problem,
            preset=chosen.instances if problem else None,
            split=split,
            seed=seed,
            expert_probability=chosen.expert_probability
            if expert_probability is None
            else expert_probability,
            max_samples=max_samples or chosen.max_samples,
            node_limit=node_limit or chosen.node_limit,
            time_limit=time_limit,
            protocol=protocol,
            backend=backend,
            instances=tuple(str(path) for path in _own_split(own, split)),
            data=str(data),
        )
        for split in SPLITS
        if split in splits
    }
    store = Path(out) / (name or problem or "own")
    wanted = samples or chosen.samples
    _claim(store, plans, wanted)
    episodes = [
        _Episodes(store / split, plan, wanted if split == "train" else max(1, wanted // 5))
        for split, plan in plans.items()
    ]
    _work(episodes, jobs, parallel_backend, cluster)
    return store, {split.plan.split: split.finish() for split in episodes}


def collected_from(collection: Path) -> set[Path]:
    """Return the user's own instances that a collection was made from, by its description."""
    try:
        found = json.loads(collection.read_text())
        plans = [found[split] for split in SPLITS if split in found]
        return {Path(path).resolve() for plan in plans for path in plan["instances"]}
    except (ValueError, KeyError) as error:
        raise InputError(f"{collection} cannot be read: it is no collection's") from error


def _own_split(paths: Sequence[Path], split: str) -> Sequence[Path]:
    """Return which of a user's instances a split gets: five, one and one of every seven.

    With fewer than seven, every split gets all of them: their episodes differ by their seeds.
    """
    if len(paths) < 7:
        return paths
    place = {"train": range(5), "valid": (5,), "test": (6,)}[split]
    return [path for index, path in enumerate(paths) if index % 7 in place]


def _claim(store: Path, plans: dict[str, Plan], samples: int) -> None:
    """Write what the store is for, or refuse if it is for something else."""
    from learn2branch.features import STATE
    from learn2branch.runs import replace_file
    from learn2branch.shards import VERSION

    settings: dict[str, Any] = {"version": VERSION, "schema": STATE.hash, "samples": samples}
    for split, plan in plans.items():
        settings[split] = asdict(plan)
        # These do not change what an episode yields (the time limit: unless it is met).
        for free in ("split", "time_limit", "data"):
            del settings[split][free]
    settings = json.loads(json.dumps(settings))  # as it will be read back
    path = store / COLLECTION
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except ValueError as error:
            raise InputError(f"{path} cannot be read: choose another --out") from error
        _refuse_if_other(store, found, settings)
        settings = {**found, **settings}
    store.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(settings, indent=1) + "\n").encode())


def _refuse_if_other(store: Path, found: dict[str, Any], settings: dict[str, Any]) -> None:
    for key in ("version", "schema"):
        if found.get(key) != settings[key]:
            raise InputError(
                f"{store} has {key} {found.get(key)}, this version writes {settings[key]}: "
                "choose another --out"
            )
    for split in (split for split in SPLITS if split in settings and split in found):
        for key, value in settings[split].items():
            if (was := found[split].get(key)) != value:
                shown = "other instances" if key == "instances" else f"{key} {was}, not {value}"
                raise InputError(
                    f"{store} was collected with {shown} ({split}): choose another --out, "
                    "or delete it to start anew"
                )
    if found["samples"] > settings["samples"]:
        raise InputError(
            f"{store} is for {found['samples']} samples: ask for as many or more, "
            "or choose another --out"
        )


class _Episodes:
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
        for episode in itertools.count():
            if total >= self.count or (episode not in self.done and episode not in self.failed):
                return episode - 1, total
            total += self.done.get(episode, 0)
        raise AssertionError

    def is_satisfied(self) -> bool:
        """Tell whether the first episodes, without a gap, have as many samples as wanted."""
        return self._prefix()[1] >= self.count

    def to_do(self) -> Iterator[int]:
        """Yield the episodes to begin, in order, until those that are done suffice."""
        for episode in itertools.count():
            if self.is_satisfied():
                return
            if episode not in self.done:
                yield episode

    def take(self, episode: int, outcome: parallel.Outcome[_Made]) -> int:
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
                self.summary.out_of_time.append(_instance(self.plan, episode))
        self._give_up_if_hopeless()
        return made.samples if made else 0

    def _give_up_if_hopeless(self) -> None:
        """Stop where nothing comes: instances solved at the root, or all failing."""
        last, _ = self._prefix()
        limit = _BARREN
        if self.plan.instances:
            limit = min(_BARREN, max(20, 2 * len(self.plan.instances)))
        recent = range(last, last - limit, -1)
        if last + 1 >= limit and not any(self.done.get(episode, 0) for episode in recent):
            failures = list(self.failed.values())
            why = (
                f"{len(failures)} failed, the last with: {failures[-1]}"
                if failures
                else "they are solved without branching, or --expert-prob is too low"
            )
            raise WorkError(
                f"the last {limit} episodes of {self.plan.split} gave no sample: {why}; "
                "use harder instances"
            )

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
            f"{_instance(self.plan, episode)} (episode {episode})": error
            for episode, error in sorted(self.failed.items())
            if episode <= last
        }
        return self.summary


def _work(splits: Sequence[_Episodes], jobs: int, backend: str, cluster: str | None) -> None:
    """Run episodes of one split after the other until all have what they want."""
    if all(split.is_satisfied() for split in splits):
        return
    begun: list[tuple[_Episodes, int]] = []

    def tasks() -> Iterator[tuple[Plan, int]]:
        for split in splits:
            if split.plan.family and not split.is_satisfied():
                _claim_instances(split.plan)
            for episode in split.to_do():
                begun.append((split, episode))
                yield split.plan, episode

    outcomes = parallel.run(
        _collect_episode,
        tasks(),
        jobs=jobs,
        timeout=splits[0].plan.time_limit + _GRACE,
        retries=1,
        backend=backend,
        cluster=cluster,
    )
    before = sum(sum(split.done.values()) for split in splits)
    total, made, started = sum(split.count for split in splits), 0, time.perf_counter()
    with track("collecting samples", total, min(before, total)) as progress:
        try:
            for outcome in outcomes:
                split, episode = begun[outcome.index]
                count = split.take(episode, outcome)
                made += count
                speed = made / (time.perf_counter() - started)
                progress.advance(
                    min(count, total - progress.done),
                    f"samples, {split.plan.split}, {speed:.2f} a second",
                )
                if all(split.is_satisfied() for split in splits):
                    return
        except KeyboardInterrupt:
            say(f"{min(before + made, total)} of {total} samples are in {splits[0].folder.parent}")
            raise
        finally:
            outcomes.close()  # type: ignore[attr-defined]


# --- in a worker ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Made:
    """What a worker sends back: the file, as one process alone writes to the store."""

    shard: bytes
    samples: int
    status: str
    seconds: float  # of the whole task
    solve_seconds: float
    our_seconds: float  # of it and after it, in observing and recording


def _collect_episode(task: tuple[Plan, int]) -> _Made:
    import torch

    from learn2branch import __version__
    from learn2branch.shards import Shard, encode_shard

    torch.set_num_threads(1)
    began = time.perf_counter()
    plan, episode = task
    instance = _instance(plan, episode)
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
    return _Made(
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


def _instance(plan: Plan, episode: int) -> str:
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


def _claim_instances(plan: Plan) -> None:
    """Have the family's folder say what it holds before workers add to it."""
    assert plan.family is not None and plan.preset is not None
    generate(plan.family, plan.preset, plan.split, count=1, seed=0, out=plan.data)
