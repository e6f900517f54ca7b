"""Searching test instances with the solver alone, Predict-and-Search and Apollo, side by side."""

from __future__ import annotations

import hashlib
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
    element_preset,
    family_instances,
    trust_regions,
)
from pipelines.element_level.results import ACCURACY, FILE, Key, Results, Row, write_accuracies
from pipelines.inputs import find_instances
from pipelines.progress import say, track
from solver_plugins.primal import Search, TrustRegion, search
from solver_plugins.solvers import INTERRUPTED, Effort, Instance, get_solver

_GRACE = 120.0  # seconds after its limit at which a search counts as hanging


@dataclass(frozen=True)
class _Task:
    instance: Path
    method: str
    model: Path | None
    backbone: str  # of the model
    training_seed: int  # of the model
    regions: tuple[TrustRegion, ...]
    solver: str
    seed: int
    time_limit: float

    @property
    def key(self) -> Key:
        return _name(self.instance), self.method, self.backbone, self.training_seed, self.seed


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
    value. What is there already is not run again.
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
    folder = Path(out or Path("results") / (f"element-{problem}-{preset}" if problem else "own"))
    if problem is None:
        files = find_instances(instances)
        references = collect(
            instances=files,
            preset=preset,
            time_limit=reference_seconds or settings.reference_seconds,
            solver=solver,
            position=any(p.provenance.get("position") for p in predictors),
            jobs=jobs,
            out=folder / "reference",
        )
    else:
        files = family_instances(problem, preset, "test", count=count, jobs=jobs, data=data)
        references = collect(
            problem,
            preset=preset,
            splits=["test"],
            count=count,
            time_limit=reference_seconds,
            solver=solver,
            jobs=jobs,
            out=labels,
            data=data,
        )
    truths = {path.stem: read_labels(path) for path in references}
    for file in files:
        if _name(file) not in truths:
            raise InputError(
                f"the reference run found no solution of {file}: give --reference-seconds more"
            )
    tasks: dict[Key, _Task] = {}
    for number, file in enumerate(files):
        turns = [
            _task(file, method, one, problem, region, solver, seed, seconds)
            for seed in range(seeds)
            for method in methods
            for one in (predictors if method != "solver" else [None])
        ]
        # None is always first: what disturbs the machine disturbs all alike.
        turn = number % max(len(turns), 1)
        tasks |= {task.key: task for task in turns[turn:] + turns[:turn]}
    folder.mkdir(parents=True, exist_ok=True)
    rows = _run(tasks, Results(folder / FILE), truths, jobs)
    if predictors:
        write_accuracies(
            folder / ACCURACY,
            {
                (p.backbone, p.training_seed): measure_accuracy(p, truths.values())
                for p in predictors
            },
        )
    return folder, rows


def _task(
    file: Path,
    method: str,
    predictor: Predictor | None,
    problem: str | None,
    region: TrustRegion | None,
    solver: str,
    seed: int,
    seconds: float,
) -> _Task:
    path, backbone, training_seed = None, "", 0
    if predictor is not None:
        path, backbone = predictor.path.absolute(), predictor.backbone
        training_seed = predictor.training_seed
    regions = tuple(trust_regions(method, problem, backbone, region))
    return _Task(
        file.absolute(), method, path, backbone, training_seed, regions, solver, seed, seconds
    )


def _run(
    tasks: dict[Key, _Task], results: Results, truths: dict[str, Labels], jobs: int
) -> list[Row]:
    known = {row.key: row for row in results.rows}
    for key, task in tasks.items():
        row = known.get(key)
        if row and (row.time_limit, row.solver, row.model) != (
            task.time_limit,
            task.solver,
            _origin(task.model),
        ):
            raise InputError(
                f"{results.path} holds searches with another time limit, solver or model: choose "
                "another --out"
            )
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
                say(f"{row.instance}, {row.label}: {row.error}")
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
        time_limit=task.time_limit,
        solver=task.solver,
        model=_origin(task.model),
        started=started,
        error=error or "",
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
    found = search(
        instance,
        probabilities,
        task.regions,
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
    return f"{file.parent.name}/{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
