"""Solving training instances for a while, and keeping pools of their good solutions as labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from learn2branch.errors import InputError, WorkError
from pipelines import parallel
from pipelines.element_level.features import element_graph
from pipelines.element_level.labels import Labels, label_name, read_facts
from pipelines.element_level.presets import POSITIONED, element_preset, family_instances
from pipelines.inputs import content_hash, find_instances
from pipelines.progress import track, warn
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

    @property
    def settings(self) -> dict[str, Any]:
        """All that the labels follow from."""
        return {
            "instance_hash": content_hash(self.instance),
            "solver": self.solver,
            "time_limit": self.time_limit,
            "position": self.position,
            "pool_size": self.effort.pool_size,
            "seed": self.effort.seed,
        }


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

    Files that are there already are kept, so an interrupted collection goes on; one that was made
    from another instance or with other settings is refused. Instances without any solution in the
    time limit are named and left out. Labels of a family go to `out/<family>/<preset>/<split>`,
    those of own instances to `out` itself.
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
                float(seconds),
                problem in POSITIONED if position is None else position,
            )
    for task in wanted.values():
        if task.out.exists():
            _check_resumable(task)
    failures = _work_through([task for task in wanted.values() if not task.out.exists()], jobs)
    collected = [target for target in wanted if target.exists()]
    if not collected:
        raise WorkError(f"no instance gave a single solution, the first {failures[0]}")
    return collected


def _check_resumable(task: _Task) -> None:
    """Refuse labels that were made in another way than these would be."""
    found = read_facts(task.out)
    for name, value in task.settings.items():
        before = found.get(name)
        if before is None:  # labels of an older version, which did not write it down
            continue
        same = float(before) == value if name == "time_limit" else before == str(value)
        if not same:
            raise InputError(
                f"{task.out} holds labels with {name.replace('_', ' ')} {before}, not {value}: "
                "choose another folder, or delete them"
            )


def _work_through(tasks: list[_Task], jobs: int) -> list[str]:
    """Collect; return a sentence for each instance that gave nothing."""
    # The longest first would be better still, but nobody knows which those are.
    timeout = max((task.time_limit for task in tasks), default=0.0) * 1.2 + _GRACE
    failures: dict[int, str] = {}
    with track("collecting solutions", len(tasks)) as progress:
        for outcome in parallel.run(_collect_one, tasks, jobs=jobs, timeout=timeout):
            task = tasks[outcome.index]
            if outcome.value == INTERRUPTED:
                raise KeyboardInterrupt
            progress.advance(note=outcome.value)
            if outcome.error is not None:
                failures[outcome.index] = f"{task.instance}: {outcome.error}"
                warn(failures[outcome.index])
    return [failures[index] for index in sorted(failures)]


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
            **task.settings,
        },
    ).write(task.out)
    return f"{task.instance.name}: {len(result.pool)} solutions, {result.status}"
