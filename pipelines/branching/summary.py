"""The numbers of a report: rows of results, compared policy by policy, as tables and sentences.

Definitions are those of docs/evaluation.md: node counts over the runs that every policy finished,
times over all runs with the limit where a run did not finish, an instance as the unit of chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np

from learn2branch.errors import InputError
from learn2branch.metrics import (
    Difference,
    compare,
    holm,
    mean_deviation_percent,
    shifted_geometric_mean,
    wins,
)
from pipelines.branching.policies import SCIP_DEFAULT
from pipelines.branching.results import Row
from pipelines.report.table import Cell, Strong, Table
from solver_plugins.solve import Solve

LEVEL = 0.05  # of significance
_AGREE = 1e-6  # two optima may differ by this, relative to the larger of them and 1

Run = tuple[str, int]  # instance and seed
Measure = Callable[[Row], float]


def _nodes(row: Row) -> float:
    return max(1.0, float(row.solve.nodes)) if row.solve else math.nan  # 0 if presolving settled it


def _fair_nodes(row: Row) -> float:
    return max(1.0, float(row.solve.fair_nodes)) if row.solve else math.nan


def _time(row: Row) -> float:
    return row.time


@dataclass(frozen=True)
class Group:
    """The runs of one family and split, as far as every policy has made them."""

    family: str
    split: str
    policies: tuple[str, ...]
    baseline: str
    runs: dict[Run, dict[str, Row]]  # every policy has a row in each
    incomplete: int  # runs that some policy has not made yet

    @property
    def title(self) -> str:
        """The family and split in words."""
        from instances import FAMILIES

        family = FAMILIES[self.family].title if self.family in FAMILIES else self.family
        family = family.split(" (")[0] or "instances"
        return ", ".join(filter(None, [family[0].upper() + family[1:], self.split]))

    @cached_property
    def finished(self) -> dict[Run, dict[str, Row]]:
        """The runs that every policy finished."""
        return {
            run: rows for run, rows in self.runs.items() if all(r.finished for r in rows.values())
        }

    @property
    def instances(self) -> list[str]:
        """The instances, in their order."""
        return list(dict.fromkeys(instance for instance, _ in self.runs))

    @property
    def seeds(self) -> int:
        """How many seeds the runs have."""
        return len({seed for _, seed in self.runs})

    def values(self, policy: str, measure: Measure, over: dict[Run, dict[str, Row]]) -> list[float]:
        """Return a measure of a policy, run by run."""
        return [measure(rows[policy]) for rows in over.values()]

    def mean(self, policy: str, measure: Measure, over: dict[Run, dict[str, Row]]) -> str:
        """Return a geometric mean with the mean deviation per instance, as text."""
        values = self.values(policy, measure, over)
        if not values:
            return "–"
        shift = 1.0 if measure is _time else 0.0
        text = _number(shifted_geometric_mean(values, shift))
        by_instance: dict[str, list[float]] = defaultdict(list)
        for (instance, _), value in zip(over, values, strict=True):
            by_instance[instance].append(value)
        deviation = mean_deviation_percent(list(by_instance.values()))
        return text if math.isnan(deviation) else f"{text} ± {deviation:.0f} %"

    def difference(
        self, policy: str, other: str, measure: Measure, over: dict[Run, dict[str, Row]]
    ) -> Difference:
        """Compare two policies on the same runs."""
        pairs: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for (instance, _), rows in over.items():
            pairs[instance][0].append(measure(rows[policy]))
            pairs[instance][1].append(measure(rows[other]))
        return compare(list(pairs.values()), 1.0 if measure is _time else 0.0)

    def best(self, measure: Measure, over: dict[Run, dict[str, Row]]) -> str | None:
        """Return the policy that is better than each other one, significantly; else nobody."""
        if len(self.policies) < 2 or not over:
            return None
        shift = 1.0 if measure is _time else 0.0
        mean = {
            p: shifted_geometric_mean(self.values(p, measure, over), shift) for p in self.policies
        }
        first = min(self.policies, key=mean.__getitem__)
        others = [p for p in self.policies if p != first]
        differences = [self.difference(first, p, measure, over) for p in others]
        adjusted = holm([d.p_value for d in differences])
        clear = all(p < LEVEL and d.high < 1 for p, d in zip(adjusted, differences, strict=True))
        return first if clear else None


def group_rows(rows: Iterable[Row], baseline: str | None = None) -> list[Group]:
    """Sort rows by family and split; `baseline` is what differences are taken against."""
    sorted_rows: dict[tuple[str, str], dict[Run, dict[str, Row]]] = {}
    policies: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        trial = row.trial
        key = (trial.family, trial.split)
        run = (trial.instance, trial.seed)
        sorted_rows.setdefault(key, {}).setdefault(run, {})[trial.policy] = row
        policies.setdefault(key, {})[trial.policy] = None
    groups = []
    for key, runs in sorted_rows.items():
        names = _order(policies[key])
        if baseline is not None and baseline not in names:
            raise InputError(
                f"the baseline {baseline} has no results for {' '.join(key).strip() or 'these'}: "
                f"choose one of {', '.join(names)}"
            )
        complete = {run: found for run, found in runs.items() if len(found) == len(names)}
        chosen = baseline or (SCIP_DEFAULT if SCIP_DEFAULT in names else names[-1])
        groups.append(Group(*key, names, chosen, complete, len(runs) - len(complete)))
    return groups


def _order(names: Iterable[str]) -> tuple[str, ...]:
    """Learned policies before SCIP's rules, each in the order they were given."""
    from solver_plugins.solve import scip_rules

    return tuple(sorted(names, key=lambda name: name in scip_rules()))


# --- tables --------------------------------------------------------------------------------------


def tables(group: Group) -> list[Table]:
    """Return the tables of a group: Gasse et al.'s, the paper's, and the differences."""
    made = [solving_table(group), tree_table(group)]
    if len(group.policies) > 1:
        made.append(difference_table(group))
    return made


def solving_table(group: Group) -> Table:
    """Return time, wins, solved and nodes, as Gasse et al. (2019) report them."""
    times = [[r[p].time if r[p].finished else math.inf for p in group.policies]
             for r in group.runs.values()]  # fmt: skip
    won = wins(times) if times else [0] * len(group.policies)
    fastest = group.best(_time, group.runs)
    fewest = group.best(_nodes, group.finished)
    fairest = group.best(_fair_nodes, group.finished)
    rows: list[list[Cell]] = []
    for number, policy in enumerate(group.policies):
        solved = sum(rows_[policy].finished for rows_ in group.runs.values())
        rows.append(
            [
                policy,
                _strong_if(policy == fastest, group.mean(policy, _time, group.runs)),
                f"{won[number]} / {solved}",
                f"{solved} / {len(group.runs)}",
                _strong_if(policy == fewest, group.mean(policy, _nodes, group.finished)),
                _strong_if(policy == fairest, group.mean(policy, _fair_nodes, group.finished)),
            ]
        )
    return Table(
        f"Solving: {group.title}",
        ["policy", "time (s)", "wins / solved", "solved", "nodes", "fair nodes"],
        rows,
        f"{_runs(group)}. Time: 1-shifted geometric mean, the limit where a run did not finish. "
        f"Nodes: geometric mean over the {len(group.finished)} runs that all policies finished. "
        "± mean standard deviation per instance over its seeds. Bold: better than each other "
        f"policy, significantly (Wilcoxon, Holm, {LEVEL:.0%}).",
    )


def tree_table(group: Group) -> Table:
    """Return the tree sizes as the paper reports them, and the largest depths."""
    fewest = group.best(_nodes, group.finished)
    fairest = group.best(_fair_nodes, group.finished)
    rows: list[list[Cell]] = []
    for policy in group.policies:
        solves = [rows_[policy].solve for rows_ in group.finished.values()]
        depth = np.mean([s.max_depth for s in solves if s]) if solves else math.nan
        lps = [s.lp_iterations / max(1, s.nodes) for s in solves if s]
        rows.append(
            [
                policy,
                _strong_if(policy == fewest, group.mean(policy, _nodes, group.finished)),
                _strong_if(policy == fairest, group.mean(policy, _fair_nodes, group.finished)),
                _number(float(depth)),
                _number(float(np.mean(lps)) if lps else math.nan),
            ]
        )
    return Table(
        f"Trees: {group.title}",
        ["policy", "nodes", "fair nodes", "depth", "LP iterations a node"],
        rows,
        f"Over the {len(group.finished)} runs that all policies finished. Nodes: geometric mean "
        "± mean standard deviation per instance. Fair nodes add two for every call of strong "
        "branching that cut the node off or reduced domains instead of branching.",
    )


_MEASURES: tuple[tuple[str, Measure], ...] = (
    ("time", _time),
    ("nodes", _nodes),
    ("fair nodes", _fair_nodes),
)


def difference_table(group: Group) -> Table:
    """Return every policy against the baseline, with intervals and tests."""
    others = [policy for policy in group.policies if policy != group.baseline]
    cases = [(name, measure, policy) for name, measure in _MEASURES for policy in others]
    differences = [
        group.difference(policy, group.baseline, measure, _over(group, measure))
        for _, measure, policy in cases
    ]
    adjusted = holm([d.p_value for d in differences])
    rows: list[list[Cell]] = []
    for (name, _, policy), d, p in zip(cases, differences, adjusted, strict=True):
        verdict = _verdict(d, p)
        interval = "–" if math.isnan(d.low) else f"{d.low:.2f} to {d.high:.2f}"
        ratio = "–" if math.isnan(d.ratio) else f"{d.ratio:.2f}"
        rows.append(
            [name, policy, _strong_if(verdict == "less", ratio), interval, _p_value(p), verdict]
        )
    return Table(
        f"Against {group.baseline}: {group.title}",
        ["measure", "policy", "ratio", "95 % interval", "p", f"than {group.baseline}"],
        rows,
        f"Ratio of geometric means to {group.baseline}; below 1 is better. Interval: bootstrap "
        f"over {len(group.instances)} instances. p: paired Wilcoxon test over instances, adjusted "
        f"for the {len(cases)} comparisons of this table (Holm). Bold: significantly less.",
        words=2,
    )


def instance_table(group: Group) -> Table:
    """Return every instance with the geometric means of each policy over its seeds."""
    rows: list[list[Cell]] = []
    for instance in group.instances:
        cells: list[Cell] = [instance]
        found = [rows_ for (name, _), rows_ in group.runs.items() if name == instance]
        for policy in group.policies:
            times = [r[policy].time for r in found]
            solved = sum(r[policy].finished for r in found)
            text = _number(shifted_geometric_mean(times))
            cells.append(text if solved == len(found) else f"{text} ({solved}/{len(found)})")
            nodes = [_nodes(r[policy]) for r in found if r[policy].solve]
            cells.append(_number(shifted_geometric_mean(nodes, 0)) if nodes else "–")
        rows.append(cells)
    columns = [f"{policy} {what}" for policy in group.policies for what in ("s", "nodes")]
    return Table(
        f"Every instance: {group.title}",
        ["instance", *columns],
        rows,
        "Geometric means over the seeds; in brackets the finished of the runs, if not all.",
    )


def _over(group: Group, measure: Measure) -> dict[Run, dict[str, Row]]:
    return group.runs if measure is _time else group.finished


# --- sentences -----------------------------------------------------------------------------------


def findings(group: Group) -> str:
    """Return in a sentence how the first policy compares with the baseline, or "" if it cannot."""
    others = [policy for policy in group.policies if policy != group.baseline]
    if not others or not group.runs:
        return ""
    policy, parts = others[0], []
    for name, measure in _MEASURES:
        d = group.difference(policy, group.baseline, measure, _over(group, measure))
        if not math.isnan(d.ratio):
            interval = "" if math.isnan(d.low) else f" ({d.low:.2f} to {d.high:.2f})"
            parts.append(f"{d.ratio:.2f} times the {name}{interval}")
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
            f"{len(failed)} of {len(rows)} runs gave no answer and count as not solved, the first: "
            f"{failed[0].trial.instance}, {failed[0].trial.policy}, seed {failed[0].trial.seed}: "
            f"{failed[0].error}"
        )
    missing = sum(group.incomplete for group in groups)
    if missing:
        found.append(
            f"{missing} instances with a seed lack some policy's run and are left out; the same "
            "command again runs what is missing."
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


def _runs(group: Group) -> str:
    seeds = f"{group.seeds} seed{'s' if group.seeds != 1 else ''}"
    return f"{len(group.instances)} instances, {seeds}, {len(group.runs)} runs a policy"


def _verdict(difference: Difference, p: float) -> str:
    if math.isnan(p) or p >= LEVEL:
        return "not significant"
    if difference.high < 1:
        return "less"
    return "more" if difference.low > 1 else "not significant"


def _strong_if(condition: bool, text: str) -> Cell:
    return Strong(text) if condition else text


def _p_value(p: float) -> str:
    if math.isnan(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "–"
    if value >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
