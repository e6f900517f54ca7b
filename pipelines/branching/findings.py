"""The sentences of a report: what was found, what disagrees, what a reader should beware of."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np

from pipelines.branching.results import Row
from pipelines.branching.summary import MEASURES, Group
from solver_plugins.solve import Solve

_AGREE = 1e-6  # two optima may differ by this, relative to the larger of them and 1


def findings(group: Group) -> str:
    """Return in a sentence how the first policy compares with the baseline, or "" if it cannot."""
    others = [policy for policy in group.policies if policy != group.baseline]
    if not others or not group.runs:
        return ""
    policy, parts = others[0], []
    for measure in MEASURES:
        d = group.difference(policy, group.baseline, measure)
        if not math.isnan(d.ratio):
            interval = "" if math.isnan(d.low) else f" ({d.low:.2f} to {d.high:.2f})"
            parts.append(f"{d.ratio:.2f} times the {measure.name}{interval}")
    return f"{group.title}: {policy} needs {', '.join(parts)} of {group.baseline}."


def disagreements(rows: Iterable[Row]) -> list[str]:
    """Return a sentence for every instance on whose answer finished runs disagree."""
    answers: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row.finished:
            key = (row.trial.instance, row.circumstances.instance_hash)
            answers[key].append(row)
    sentences = []
    for (instance, _), found in answers.items():
        for a, b in combinations(found, 2):
            if a.solve and b.solve and not agree(a.solve, b.solve):
                sentences.append(f"{instance}: {_answer(a)}, but {_answer(b)}")
                break
    return sentences


def agree(a: Solve, b: Solve) -> bool:
    """Tell whether two finished solves of an instance have the same answer."""
    x, y = a.objective, b.objective
    if x is None or y is None:
        return (x is None) == (y is None)
    return abs(x - y) <= _AGREE * max(1.0, abs(x), abs(y))


def _answer(row: Row) -> str:
    objective = row.solve.objective if row.solve else None
    answer = row.status if objective is None else f"{row.status} {objective:.10g}"
    return f"{row.trial.policy} with seed {row.trial.seed} says {answer}"


def warnings(rows: Sequence[Row], groups: Sequence[Group]) -> list[str]:
    """Return what a reader should beware of, one sentence each."""
    found = []
    crowded = [r for r in rows if r.circumstances.jobs > r.circumstances.free_cores]
    if crowded:
        how = crowded[0].circumstances
        found.append(
            f"Times are not comparable: with --jobs {how.jobs} only {how.free_cores} of "
            f"{how.cores} cores were free at the start. Node counts are not affected."
        )
    shares = [r.solve.cpu_time / r.solve.wall_time for r in rows if r.solve and r.solve.wall_time]
    if shares and (share := float(np.median(shares))) < 0.9:
        found.append(
            f"The solves had to wait for a core: they ran for {share:.0%} of their wall time "
            "(median), so times are longer and noisier than on a quiet machine."
        )
    failed = [row for row in rows if row.solve is None]
    if failed:
        found.append(
            f"{len(failed)} of {len(rows)} runs gave no answer and count as not solved (or not at "
            "all, where every policy failed), the first: "
            f"{failed[0].trial.instance}, {failed[0].trial.policy}, seed {failed[0].trial.seed}: "
            f"{failed[0].error}"
        )
    missing = sum(group.incomplete for group in groups)
    if missing:
        found.append(
            f"{missing} instances with a seed lack some policy's run and are left out; the same "
            "command again runs what is missing."
        )
    for group in groups:
        outcomes = [row.solve for runs in group.runs.values() for row in runs.values()]
        if outcomes and all(solve is not None and solve.nodes <= 1 for solve in outcomes):
            found.append(
                f"No solve of {group.title[0].lower()}{group.title[1:]} branched: branching rules "
                "cannot differ there, and differences in time are chance."
            )
    for policy in dict.fromkeys(row.trial.policy for row in rows):
        solves = [row.solve for row in rows if row.trial.policy == policy and row.solve]
        left = sum(solve.fallbacks or 0 for solve in solves)
        decided = sum(solve.decisions or 0 for solve in solves)
        if left:
            found.append(f"{policy} left {left} of {left + decided} decisions to SCIP's own rules.")
    for what in ("versions", "machine", "protocol", "time_limit", "node_limit"):
        kinds = {str(getattr(row.circumstances, what)) for row in rows}
        if len(kinds) > 1:
            name = what.replace("_", " ")
            found.append(f"Runs differ in {name}: {'; '.join(sorted(kinds))}.")
    return found
