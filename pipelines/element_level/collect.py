"""Solving training instances for a while, and keeping pools of their good solutions as labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from learn2branch.errors import InputError, WorkError
from pipelines import parallel
from pipelines.element_level.features import element_graph
from pipelines.element_level.labels import Labels, label_name
from pipelines.element_level.presets import POSITIONED, element_preset, family_instances
from pipelines.inputs import find_instances
from pipelines.progress import say, track
from solver_plugins.solvers import INFEASIBLE, INTERRUPTED, Effort, Instance, get_solver

_GRACE = 120.0  # seconds after its limit at which a solve counts as hanging


@dataclass(frozen=True)
class _Task:
    instance: Path
    out: Path
    solver: str
    effort: Effort
    time_limit: float
    position: bool


def collect(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    *,
    preset: str = "paper",
    splits: Sequence[str] = ("train", "valid"),
    count: int | None = None,
    seed: int = 0,
    time_limit: float | None = None,
    pool_size: int | None = None,
    solver: str = "scip",
    position: bool | None = None,
    jobs: int = 1,
    out: Path | str = "labels",
    data: Path | str = "data/element",
) -> list[Path]:
    """Collect pools for a family's splits, or for a user's own instances; return the files.

    Files that are there already are kept, so an interrupted collection goes on. Instances without
    any solution in the time limit are named and left out. Labels of a family go to
    `out/<family>/<preset>/<split>`, those of own instances to `out` itself.
    """
    if (problem is None) == (not instances):
        raise InputError("give a family (--problem) or your own files (--instances), one of them")
    get_solver(solver)  # complains here, once, if it is not installed
    settings = element_preset(preset)
    effort = Effort(seed=seed, pool_size=pool_size or settings.pool_size)
    groups: list[tuple[Path, list[Path], float]] = []
    if problem is None:
        files = find_instances(instances)
        groups.append((Path(out), files, time_limit or settings.label_seconds))
    else:
        for split in splits:
            files = family_instances(
                problem, preset, split, count=count, seed=seed, jobs=jobs, data=data
            )
            usual = settings.reference_seconds if split == "test" else settings.label_seconds
            groups.append((Path(out) / problem / preset / split, files, time_limit or usual))
    wanted: dict[Path, _Task] = {}
    for folder, files, seconds in groups:
        for file in files:
            target = folder / label_name(file)
            if target in wanted:
                raise InputError(
                    f"{file} and {wanted[target].instance} have the same name: rename one of them"
                )
            wanted[target] = _Task(
                file.absolute(),  # a worker process may have been started elsewhere
                target.absolute(),
                solver,
                effort,
                seconds,
                problem in POSITIONED if position is None else position,
            )
    _work_through([task for task in wanted.values() if not task.out.exists()], jobs)
    collected = [target for target in wanted if target.exists()]
    if not collected:
        raise WorkError("no instance gave a single solution: give them more time")
    return collected


def _work_through(tasks: list[_Task], jobs: int) -> None:
    # The longest first would be better still, but nobody knows which those are.
    timeout = max((task.time_limit for task in tasks), default=0.0) * 1.2 + _GRACE
    with track("collecting solutions", len(tasks)) as progress:
        for outcome in parallel.run(_collect_one, tasks, jobs=jobs, timeout=timeout):
            task = tasks[outcome.index]
            if outcome.value == INTERRUPTED:
                raise KeyboardInterrupt
            progress.advance(note=outcome.value)
            if outcome.error is not None:
                say(f"{task.instance}: {outcome.error}")


def _collect_one(task: _Task) -> str:
    """Solve one instance in a worker process and write its labels; return a note."""
    instance = Instance.read(task.instance)
    arrays = instance.arrays
    binaries = np.flatnonzero(arrays.is_binary)
    if not len(binaries):
        raise InputError("has no binary variables, so there is nothing to predict")
    result = get_solver(task.solver).solve(instance, task.time_limit, task.effort)
    if result.status == INTERRUPTED:
        return INTERRUPTED
    if result.status == INFEASIBLE:
        raise InputError("is infeasible, so there is nothing to predict")
    if not result.pool:
        raise WorkError(f"no solution within {task.time_limit:g} s: give it more time")
    Labels(
        graph=element_graph(arrays, task.position),
        binaries=binaries,
        solutions=np.array([one.values[binaries] > 0.5 for one in result.pool]),
        objectives=np.array([one.objective for one in result.pool]),
        maximise=arrays.maximise,
        seconds=np.array([one.seconds for one in result.incumbents]),
        incumbents=np.array([one.objective for one in result.incumbents]),
        facts={
            "instance": task.instance.name,
            "status": result.status,
            "bound": result.bound,
            "solver": task.solver,
            "time_limit": task.time_limit,
            "position": task.position,
        },
    ).write(task.out)
    return f"{task.instance.name}: {len(result.pool)} solutions, {result.status}"
