"""Collecting samples: episodes over the instances of a family or a user's own, into a store.

A store says in `collection.json` what it is for, goes on where it was, and is refused to a
collection of another kind.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from learn2branch.errors import InputError
from pipelines import parallel
from pipelines.branching.episodes import SPLITS, Episodes, Plan, SplitSummary, collect_episode
from pipelines.generate import generate
from pipelines.inputs import find_instances
from pipelines.progress import say, track
from solver_plugins.parameters import read_parameters

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
# Settings that the `collection.json` of an older version does not have, and what it meant.
_ADDED_LATER: dict[str, Any] = {"first_episode": 0, "parameters": []}
_GRACE = 120.0  # seconds after its time limit when a solve counts as hanging


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
    first_episode: int = 0,
    jobs: int = 1,
    out: Path | str = "samples",
    name: str | None = None,
    data: Path | str = "data",
    backend: str = "scip",
    protocol: str = "gasse",
    parameters: Mapping[str, Any] | None = None,
    parallel_backend: str = "loky",
    cluster: str | None = None,
) -> tuple[Path, dict[str, SplitSummary]]:
    """Collect samples of the splits; return the store and what these splits of it hold.

    What is there already from the same settings is kept; another collection is refused. Splits
    collected one after the other may differ in their settings. Raises KeyboardInterrupt after
    Ctrl-C, with everything finished kept. `parameters` are SCIP's, beside those of the protocol.
    """
    if (problem is None) == (not instances):
        raise InputError("name a family with --problem, or your own files with --instances")
    if cluster is not None and parallel_backend == "loky":
        raise InputError("--cluster needs --parallel dask or ray: whose address it is")
    if backend == "ecole":  # asked for here once, before it fails in every worker
        importlib.import_module("solver_plugins.ecole").import_ecole()
    if preset not in PRESETS:
        raise InputError(f"there is no preset {preset}: expected one of {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    if preset == "small" and samples is None:
        samples = SMALL_SAMPLES.get(problem or "")
    own = find_instances(instances) if instances else []
    settings = tuple(sorted(read_parameters(parameters or {}).items()))
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
            first_episode=first_episode,
            parameters=settings,
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
        Episodes(store / split, plan, wanted if split == "train" else max(1, wanted // 5))
        for split, plan in plans.items()
    ]
    _work(episodes, jobs, parallel_backend, cluster)
    return store, {split.plan.split: split.finish() for split in episodes}


def collected_from(collection: Path) -> set[Path]:
    """Return the user's own instances that a collection was made from, by its description."""
    found = _read(collection)
    plans = [found[split] for split in SPLITS if split in found]
    return {Path(path).resolve() for plan in plans for path in plan["instances"]}


def _read(collection: Path) -> dict[str, Any]:
    """Return the description of a collection, or refuse what is none."""
    try:
        found: dict[str, Any] = json.loads(collection.read_text())
        is_one = isinstance(found["samples"], int) and all(
            isinstance(found[split]["instances"], list) for split in SPLITS if split in found
        )
    except (ValueError, KeyError, TypeError):
        is_one = False
    if not is_one:
        raise InputError(f"{collection} is no collection's: choose another --out, or delete it")
    return found


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
        found = _read(path)
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
            if (was := found[split].get(key, _ADDED_LATER.get(key))) != value:
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


def _work(splits: Sequence[Episodes], jobs: int, backend: str, cluster: str | None) -> None:
    """Run episodes of one split after the other until all have what they want."""
    if all(split.is_satisfied() for split in splits):
        return
    begun: list[tuple[Episodes, int]] = []

    def tasks() -> Iterator[tuple[Plan, int]]:
        for split in splits:
            if split.plan.family and not split.is_satisfied():
                _claim_instances(split.plan)
            for episode in split.to_do():
                begun.append((split, episode))
                yield split.plan, episode

    outcomes = parallel.run(
        collect_episode,
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


def _claim_instances(plan: Plan) -> None:
    """Have the family's folder say what it holds before workers add to it."""
    assert plan.family is not None and plan.preset is not None
    generate(plan.family, plan.preset, plan.split, count=1, seed=0, out=plan.data)
