"""Searching test instances with the solver alone, Predict-and-Search and Apollo, side by side."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from learn2branch.errors import InputError
from pipelines import machine, parallel
from pipelines.element_level.collect import collect
from pipelines.element_level.labels import Labels, read_labels
from pipelines.element_level.predict import Predictor, find_model, measure_accuracy
from pipelines.element_level.presets import (
    METHODS,
    as_shares,
    element_preset,
    family_instances,
    trust_regions,
)
from pipelines.element_level.results import ACCURACY, FILE, Key, Results, Row, write_accuracies
from pipelines.inputs import content_hash, find_instances
from pipelines.progress import say, track, warn
from solver_plugins.primal import Search, TrustRegion, free_binaries, search
from solver_plugins.solvers import INTERRUPTED, Effort, Instance, get_solver

_GRACE = 120.0  # seconds after its limit at which a search counts as hanging


@dataclass(frozen=True)
class _Task:
    instance: Path
    instance_hash: str
    family: str | None  # of the instance; None for a user's own
    method: str
    model: Path | None
    backbone: str  # of the model
    training_seed: int  # of the model
    region: TrustRegion | None  # of the user; None for the family's
    solver: str
    seed: int
    time_limit: float
    reference_seconds: float

    @property
    def key(self) -> Key:
        return _name(self.instance), self.method, self.backbone, self.training_seed, self.seed

    def regions(self, region: TrustRegion | None) -> list[TrustRegion]:
        return trust_regions(self.method, self.family, self.backbone, region)

    @property
    def settings(self) -> dict[str, Any]:
        """What a row must have been made with to stand for this task, by column."""
        asked = self.regions(None)
        if asked and self.region is not None:
            asked = [self.region]  # Apollo's shares of it follow from the instance
        return {
            "time_limit": self.time_limit,
            "solver": self.solver,
            "reference_seconds": self.reference_seconds,
            "instance_hash": self.instance_hash,
            "model": _origin(self.model),
            "regions": "; ".join(f"{r.k0:.10g} {r.k1:.10g} {r.delta:.10g}" for r in asked),
        }


def evaluate(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    models: Sequence[str | Path] = (),
    *,
    preset: str = "paper",
    methods: Sequence[str] = METHODS,
    count: int | None = None,
    seeds: int = 1,
    time_limit: float | None = None,
    reference_seconds: float | None = None,
    solver: str = "scip",
    region: TrustRegion | None = None,
    jobs: int = 1,
    out: Path | str | None = None,
    labels: Path | str = "labels",
    data: Path | str = "data/element",
    runs: Path | str = "runs",
) -> tuple[Path, list[Row]]:
    """Search every instance with every method, model and seed; return the folder and the rows.

    Without models, all runs of the family and preset are meant. A longer reference run of each
    instance is made first: it is the truth for the accuracies and a candidate for the best known
    value. What is there already is not run again; what was made with other settings is refused.
    """
    if (problem is None) == (not instances):
        raise InputError("give a family (--problem) or your own files (--instances), one of them")
    for method in methods:
        trust_regions(method)  # complains about an unknown one
    settings = element_preset(preset)
    seconds = float(time_limit or settings.search_seconds)
    predictors = [Predictor(path) for path in models or _all_runs(runs, problem, preset)]
    if not predictors and set(methods) != {"solver"}:
        raise InputError("there is no trained model: run l2b element train, or give --model")
    _refuse_twins(predictors)
    reference = float(reference_seconds or settings.reference_seconds)
    position = _position(predictors)
    name = f"element-{problem}-{preset}" if problem else "element-own"
    folder = Path(out or Path("results") / name)
    if problem is None:
        files = find_instances(instances)
    else:
        files = family_instances(problem, preset, "test", count=count, jobs=jobs, data=data)
    tasks: dict[Key, _Task] = {}
    for number, file in enumerate(files):
        content = content_hash(file)
        turns = [
            _Task(
                instance=file.absolute(),
                instance_hash=content,
                family=problem,
                method=method,
                model=one.path.absolute() if one else None,
                backbone=one.backbone if one else "",
                training_seed=one.training_seed if one else 0,
                region=region,
                solver=solver,
                seed=seed,
                time_limit=seconds,
                reference_seconds=reference,
            )
            for seed in range(seeds)
            for method in methods
            for one in (predictors if method != "solver" else [None])
        ]
        # None is always first: what disturbs the machine disturbs all alike.
        turn = number % max(len(turns), 1)
        tasks |= {task.key: task for task in turns[turn:] + turns[:turn]}
    results = Results(folder / FILE)
    _check_resumable(results, tasks)  # before hours are spent on references
    references = collect(
        problem,
        files if problem is None else (),
        preset=preset,
        splits=["test"],
        count=count,
        time_limit=reference,
        solver=solver,
        position=position,
        jobs=jobs,
        out=labels if problem else folder / "reference",
        data=data,
    )
    truths = {path.stem: read_labels(path) for path in references}
    for file in files:
        if _name(file) not in truths:
            raise InputError(
                f"the reference run gave no solution of {file}, as said above: leave it out, or "
                "give --reference-seconds more if it was a matter of time"
            )
    rows = _run(tasks, results, truths, jobs)
    if predictors:
        write_accuracies(
            folder / ACCURACY,
            {
                (p.backbone, p.training_seed): measure_accuracy(p, truths.values())
                for p in predictors
            },
        )
    return folder, rows


def _check_resumable(results: Results, tasks: dict[Key, _Task]) -> None:
    """Refuse to add to rows that were made in another way than these will be.

    All rows of a file are compared with each other, so limits and solver must agree everywhere,
    an instance must be the same for all methods, and a method the same for all instances.
    """
    hashes = {task.key[0]: {"instance_hash": task.instance_hash} for task in tasks.values()}
    # Once a method: the settings hash the file of its model.
    methods = {task.key[1:4]: task for task in tasks.values()}
    settings = {method: task.settings for method, task in methods.items()}
    anyone = next(iter(settings.values()), {})
    for row in results.rows:
        for names, now in (
            (("time_limit", "solver", "reference_seconds"), anyone),
            (("instance_hash",), hashes.get(row.instance, {})),
            (("model", "regions"), settings.get(row.key[1:4], {})),
        ):
            for name in names:
                before = getattr(row, name)
                # An older version left some empty.
                if now and before not in (now[name], "", None):
                    raise InputError(
                        f"{results.path} holds searches of {row.instance} by {row.label} with "
                        f"{name.replace('_', ' ')} {before}, not {now[name]}: choose another --out"
                    )


def _run(
    tasks: dict[Key, _Task], results: Results, truths: dict[str, Labels], jobs: int
) -> list[Row]:
    known = {row.key for row in results.rows}
    missing = [key for key in tasks if key not in known]
    if len(missing) < len(tasks):
        say(f"{results.path} has {len(tasks) - len(missing)} of {len(tasks)} searches already")
    if missing and jobs > (free := machine.free_cores()):
        say(f"{jobs} searches at a time on {free} free cores: times will not be comparable")
    common = {
        "jobs": jobs,
        "machine": machine.describe(),
        "versions": machine.versions(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    limit = max((task.time_limit for task in tasks.values()), default=0.0)
    work = [tasks[key] for key in missing]
    with track("searching", len(work)) as progress:
        for outcome in parallel.run(_search, work, jobs=jobs, timeout=1.5 * limit + _GRACE):
            task = work[outcome.index]
            truth = truths[_name(task.instance)]
            row = _row(task, outcome.value, outcome.error, truth, common)
            if row.status == INTERRUPTED:
                raise KeyboardInterrupt
            results.append(row)
            progress.advance(note=f"{row.instance} {row.label}: {row.objective}")
            if row.error:
                warn(f"{row.instance}, {row.label}: {row.error}")
    return [row for row in results.rows if row.key in tasks]


def _row(
    task: _Task,
    value: tuple[str, float, Search] | None,
    error: str | None,
    truth: Labels,
    common: dict[str, Any],
) -> Row:
    started, predicting, found = value or ("", 0.0, Search("failed", (), (), 0.0))
    # A solver may overrun its limit a little; what it finds then does not count.
    counted = [one for one in found.incumbents if one.seconds <= task.time_limit]
    return Row(
        instance=_name(task.instance),
        method=task.method,
        backbone=task.backbone,
        training_seed=task.training_seed,
        seed=task.seed,
        status=found.status,
        objective=counted[-1].objective if counted else None,
        best_known=float(truth.objectives[0]),
        maximise=truth.maximise,
        seconds=found.seconds,
        prediction_seconds=predicting,
        times=tuple(round(one.seconds, 4) for one in counted),
        objectives=tuple(float(one.objective) for one in counted),
        phases="; ".join(
            f"{p.name} {p.status} {p.seconds:.2f} s (held {p.zeros}+{p.ones}, "
            f"delta {p.delta}, fixed {p.fixed})"
            for p in found.phases
        ),
        rejected=sum(p.rejected for p in found.phases),
        started=started,
        error=error or "",
        **task.settings,
        **common,
    )


def _search(task: _Task) -> tuple[str, float, Search]:
    """Search one instance in a worker process; return when, seconds predicting, and the search."""
    import torch

    torch.set_num_threads(1)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    solver, effort = get_solver(task.solver), Effort(seed=task.seed)
    if task.model is None:
        instance = Instance.read(task.instance)  # only to check solutions: not part of the time
        found = search(instance, None, [], solver=solver, time_limit=task.time_limit, effort=effort)
        return now, 0.0, _without_values(found)
    predictor = _predictor(str(task.model))
    began = time.perf_counter()
    instance = Instance.read(task.instance)
    probabilities = predictor(instance.arrays)
    predicting = time.perf_counter() - began
    own = task.region and as_shares(task.region, len(free_binaries(instance.arrays)))
    found = search(
        instance,
        probabilities,
        task.regions(own),
        solver=solver,
        time_limit=task.time_limit,
        effort=effort,
        started=began,
    )
    return now, predicting, _without_values(found)


def _without_values(found: Search) -> Search:
    """Leave the solutions themselves behind: they are large, checked, and no row holds them."""
    nothing = np.empty(0)
    return replace(found, incumbents=tuple(replace(i, values=nothing) for i in found.incumbents))


@cache
def _predictor(path: str) -> Predictor:
    return Predictor(path)


def _all_runs(runs: Path | str, problem: str | None, preset: str) -> list[Path]:
    if problem is None:
        return []
    return sorted(Path(runs).glob(f"element-{problem}-{preset}-*/policy.pt"))


def _position(predictors: Sequence[Predictor]) -> bool | None:
    """Tell whether the models know variables by position; None, as the family, without models."""
    found = {bool(one.provenance.get("position")) for one in predictors}
    if len(found) > 1:
        raise InputError(
            "some of the models were trained with --position and some without: evaluate them apart"
        )
    return found.pop() if found else None


def _refuse_twins(predictors: Sequence[Predictor]) -> None:
    seen: dict[str, Path] = {}
    for one in predictors:
        if one.label in seen:
            raise InputError(
                f"{seen[one.label]} and {one.path} are both {one.label}: give one of them"
            )
        seen[one.label] = one.path


def _name(file: Path) -> str:
    return file.name.split(".")[0]


@cache
def _origin(model: Path | None) -> str:
    if model is None:
        return ""
    file = find_model(model)
    return f"{file.parent.name}/{file.name} {content_hash(file)}"
