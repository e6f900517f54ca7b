"""Checking a user's instances before hours are spent on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from learn2branch.errors import InputError
from pipelines import parallel
from pipelines.inputs import find_instances
from pipelines.progress import track
from solver_plugins.inspection import Inspection, inspect

_SPARE_SECONDS = 600.0  # to read a large file, before its process is given up


def check(
    patterns: Iterable[str | Path], time_limit: float = 30.0, jobs: int = 1
) -> Iterator[Inspection | str]:
    """Look at every instance that the patterns name; yield what was seen, or why nothing was.

    Each is read, presolved and solved for `time_limit` seconds, in a process of its own: what
    brings the solver down costs only itself. They come in their order, each as soon as it can.
    """
    paths = find_instances(patterns)
    found: dict[int, Inspection | str] = {}
    told = 0
    with track("checking", len(paths)) as progress:
        tasks = [(str(path), time_limit) for path in paths]
        timeout = time_limit + _SPARE_SECONDS
        for outcome in parallel.run(_inspect, tasks, jobs=jobs, timeout=timeout):
            progress.advance()
            failure = f"{paths[outcome.index]} failed: {outcome.error}"
            found[outcome.index] = failure if outcome.value is None else outcome.value
            while told in found:
                yield found.pop(told)
                told += 1


def describe(inspection: Inspection) -> str:
    """Return what was seen of one instance as a few lines for a reader."""
    i = inspection
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in i.variables.items() if count)
    lines = [
        i.path,
        f"  variables  {sum(i.variables.values()):,}: {kinds}",
        f"  rows       {i.rows:,} with {i.nonzeros:,} non-zeros",
        f"  presolve   leaves {_count(i.presolved_variables, 'variable')}, "
        f"{_count(i.presolved_rows, 'row')}, {_count(i.presolved_nonzeros, 'non-zero')} "
        f"({i.presolve_seconds:.1f} s)",
        f"  solve      {_solve(i)}",
        *(f"  note       {remark}" for remark in i.remarks),
        f"  learning   {'pointless: ' + i.obstacle if i.obstacle else _promise(i)}",
    ]
    return "\n".join(lines)


def summarise(inspections: Sequence[Inspection]) -> str:
    """Return one line on all instances together."""
    fit = [i for i in inspections if i.obstacle is None]
    line = f"{len(fit)} of {_count(len(inspections), 'instance')} can be learned from"
    if fit:
        seconds, nodes = median(i.seconds for i in fit), median(i.nodes for i in fit)
        line += f" (median {seconds:.1f} s, {nodes:,.0f} nodes)"
    reasons = Counter(i.obstacle.split(",")[0] for i in inspections if i.obstacle)
    return "; ".join([line, *(f"{count} {reason}" for reason, count in reasons.items())])


def _inspect(task: tuple[str, float]) -> Inspection | str:
    try:
        return inspect(*task)
    except InputError as error:
        return str(error)


def _solve(i: Inspection) -> str:
    nodes = _count(i.nodes, "node")
    if not i.unfinished:
        return f"{i.status} in {i.seconds:.1f} s, {nodes}"
    gap = "no solution yet" if i.gap == float("inf") else f"gap {100 * i.gap:.1f} %"
    guess = f", about {i.estimated_seconds:,.0f} s in all" if i.estimated_seconds else ""
    return f"not finished in {i.seconds:.0f} s: {nodes}, {gap}{guess}"


def _promise(i: Inspection) -> str:
    return "possible: SCIP branches" if i.nodes > 1 else "unclear: SCIP has not branched yet"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
