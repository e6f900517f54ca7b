"""Solving instances with several policies and seeds, side by side, into `results.csv`.

What the numbers mean and how they are compared is the report's business, not done here.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from learn2branch.errors import InputError
from pipelines import machine, parallel
from pipelines.branching.policies import Choice, find_choices, newest_family, trained_on
from pipelines.branching.results import FILE, Circumstances, Results, Row, Trial
from pipelines.inputs import content_hash, find_instances
from pipelines.progress import detail, say, track
from solver_plugins.parameters import read_parameters
from solver_plugins.solve import Solve, solve

SPLITS = ("test", "transfer")
# A solve that has not ended this long after its limit hangs, and is killed.
_GRACE = 60.0


@dataclass(frozen=True)
class Task:
    """One solve, as a worker process needs it."""

    instance: Path
    choice: Choice
    seed: int
    protocol: str
    time_limit: float
    node_limit: int | None
    parameters: dict[str, Any]  # of SCIP, beside the protocol's


def evaluate(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    policies: Iterable[str] = (),
    *,
    preset: str = "paper",
    splits: Sequence[str] = (),
    count: int | None = None,
    seeds: int = 5,
    time_limit: float = 3600.0,
    node_limit: int | None = None,
    protocol: str = "gasse",
    parameters: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    jobs: int = 1,
    out: Path | str | None = None,
    data: Path | str = "data",
    runs: Path | str = "runs",
    command: str | None = None,
) -> tuple[Path, list[Row]]:
    """Solve every instance with every policy and every seed; return the file and the rows asked.

    The instances are a family's test and transfer splits, generated if need be, or a user's own;
    named neither, the family of the newest run.
    Rows that the file already has are not run again, so an interrupted evaluation goes on.
    `parameters` are SCIP's, beside those of the protocol. `baseline` is only checked here, before
    hours are spent.
    """
    if problem is not None and instances:
        raise InputError("give a family (--problem) or your own files (--instances), one of them")
    if problem is None and not instances:
        problem = _newest_family(runs)
    choices = find_choices(policies, problem, runs)
    labels = [choice.label for choice in choices]
    if baseline is not None and baseline not in labels:
        raise InputError(f"the baseline {baseline} is not among the policies {', '.join(labels)}")
    settings = dict(sorted(read_parameters(parameters or {}).items()))
    if problem is None:
        files = _own(instances, splits, count)
        _warn_about_seen(choices, [file for _, file in files])
    else:
        files = _of_family(problem, preset, splits, count, data, jobs)
    folder = Path(out) if out else Path("results") / (f"{problem}-{preset}" if problem else "own")
    free = machine.free_cores()
    _warn_about_times(jobs, free)
    common: dict[str, Any] = {
        "protocol": ", ".join([protocol, *(f"{name}={settings[name]}" for name in settings)]),
        "time_limit": float(time_limit),
        "node_limit": node_limit,
        "jobs": jobs,
        "cores": machine.cores(),
        "free_cores": free,
        "machine": machine.describe(),
        "versions": machine.versions(),
        "command": command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    hashes = {file: content_hash(file) for _, file in files}
    wanted: dict[Trial, Task] = {}
    for number, (trial, file) in enumerate(files):
        for seed in range(seeds):
            # Side by side, and none always first: what disturbs the machine disturbs all alike.
            turn = (number + seed) % len(choices)
            for choice in choices[turn:] + choices[:turn]:
                key = Trial(trial.family, trial.split, trial.instance, choice.label, seed)
                limits = (float(time_limit), node_limit)
                wanted[key] = Task(file, choice, seed, protocol, *limits, settings)
    with Results(folder / FILE) as results:
        _check_resumable(results, wanted, hashes, common)
        done = {row.trial for row in results.rows}
        missing = [trial for trial in wanted if trial not in done]
        if len(missing) < len(wanted):
            say(f"{results.path} has {len(wanted) - len(missing)} of {len(wanted)} runs already")
        tasks = [wanted[trial] for trial in missing]
        timeout = time_limit * 1.1 + _GRACE
        with track("evaluating", len(tasks)) as progress:
            for outcome in parallel.run(_work, tasks, jobs=jobs, timeout=timeout):
                trial, task = missing[outcome.index], tasks[outcome.index]
                how = Circumstances(
                    **common,
                    instance_hash=hashes[task.instance],
                    policy_origin=task.choice.origin,
                    started=outcome.value[0] if outcome.value else _now(),
                )
                row = _row(trial, outcome, how)
                if row.status == "userinterrupt":
                    raise KeyboardInterrupt
                results.append(row)
                progress.advance(note=f"{trial.instance} {trial.policy}: {row.status}")
                if row.error:
                    say(f"{trial.instance}, {trial.policy}, seed {trial.seed}: {row.error}")
        rows = [row for row in results.rows if row.trial in wanted]
    return results.path, rows


def _newest_family(runs: Path | str) -> str:
    found = newest_family(runs)
    if found is None:
        raise InputError("give a family (--problem) or your own files (--instances)")
    family, policy = found
    say(f"{policy.parent} is the newest run: evaluating on {family}")
    return family


def _work(task: Task) -> tuple[str, Solve]:
    """Solve in a worker process: one torch thread, the policy loaded once per process."""
    import torch

    torch.set_num_threads(1)
    started = _now()
    policy = _load(str(task.choice.file)) if task.choice.file else None
    result = solve(
        task.instance,
        rule=task.choice.rule,
        policy=policy,
        protocol=task.protocol,
        seed=task.seed,
        time_limit=task.time_limit,
        node_limit=task.node_limit,
        parameters=task.parameters,
    )
    return started, result


@cache
def _load(file: str) -> Any:
    from learn2branch.policy import load_policy

    return load_policy(file)


def _row(trial: Trial, outcome: parallel.Outcome[tuple[str, Solve]], how: Circumstances) -> Row:
    if outcome.value is not None:
        result = outcome.value[1]
        return Row(trial, result.status, result, "", how)
    error = outcome.error or "no answer"
    return Row(trial, _failure(error), None, error, how)


def _failure(error: str) -> str:
    """Tell from the sentence of `parallel.run` what became of a process."""
    if error.startswith("took longer"):
        return "killed"
    return "crashed" if error.startswith("its process ended") else "failed"


def _own(
    patterns: Sequence[str | Path], splits: Sequence[str], count: int | None
) -> list[tuple[Trial, Path]]:
    if splits:
        raise InputError("--split is for --problem: your own instances have no splits")
    return [(Trial("", "", str(file), "", 0), file) for file in find_instances(patterns)[:count]]


def _of_family(
    problem: str,
    preset: str,
    splits: Sequence[str],
    count: int | None,
    data: Path | str,
    jobs: int,
) -> list[tuple[Trial, Path]]:
    from instances import FAMILIES
    from pipelines.generate import generate

    splits = splits or [name for name in SPLITS if name in FAMILIES[problem].splits(preset)]
    return [
        (Trial(problem, split, f"{problem}/{preset}/{split}/{file.stem}", "", 0), file)
        for split in splits
        for file in generate(problem, preset, split, count, jobs=jobs, out=data)
    ]


def _warn_about_seen(choices: Iterable[Choice], files: Sequence[Path]) -> None:
    for choice in choices:
        learned_from = trained_on(choice.file) if choice.file else set()
        seen = [file for file in files if file.resolve() in learned_from]
        if seen:
            say(
                f"{choice.label} was trained on {len(seen)} of these {len(files)} instances "
                f"({seen[0]} first): how it does there says nothing about new ones"
            )


def _warn_about_times(jobs: int, free: int) -> None:
    if jobs > free:
        say(
            f"--jobs {jobs} on {free} free cores: times of these runs will not be comparable (node "
            f"counts will); use a quieter machine{' or a smaller --jobs' if jobs > 1 else ''}"
        )


def _check_resumable(
    results: Results, wanted: dict[Trial, Task], hashes: dict[Path, str], common: dict[str, Any]
) -> None:
    """Refuse to add to rows that were made in another way than these will be."""
    origins = {
        (trial.family, trial.split, trial.policy): task.choice.origin
        for trial, task in wanted.items()
    }
    compared = {(family, split) for family, split, _ in origins}  # with each other, in a table
    for row in results.rows:
        how, trial = row.circumstances, row.trial
        if (trial.family, trial.split) not in compared:
            continue
        now = {name: common[name] for name in ("protocol", "time_limit", "node_limit")}
        if origin := origins.get((trial.family, trial.split, trial.policy)):
            now["policy_origin"] = origin
        if task := wanted.get(trial):
            now["instance_hash"] = hashes[task.instance]
        for name, value in now.items():
            if getattr(how, name) == value:
                continue
            if name == "instance_hash":
                raise InputError(
                    f"{trial.instance} is another than {results.path} has runs of: delete its "
                    "lines there, or choose another --out"
                )
            what = name.replace("_", " ")
            raise InputError(
                f"{results.path} holds runs of {row.trial.policy} with {what} "
                f"{getattr(how, name)}, not {value}: choose another --out"
            )
    earlier = {row.circumstances.versions for row in results.rows} - {common["versions"]}
    if earlier:
        say(f"{results.path} also holds runs of other versions: {'; '.join(sorted(earlier))}")
    detail(f"rows go to {results.path}")


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
