"""The numbers of a report: rows of results, compared policy by policy.

Definitions are those of docs/evaluation.md: node counts over the runs that every policy finished,
times over all runs with the limit where a run did not finish, an instance as the unit of chance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from learn2branch.errors import InputError
from learn2branch.metrics import (
    Difference,
    compare,
    holm,
    mean_deviation_percent,
    shifted_geometric_mean,
)
from pipelines.branching.policies import KINDS, SCIP_DEFAULT
from pipelines.branching.results import Row

LEVEL = 0.05  # of significance

Run = tuple[str, int]  # instance and seed


@dataclass(frozen=True)
class Measure:
    """What runs are compared by."""

    name: str
    of: Callable[[Row], float]
    shift: float  # of its geometric means
    unfinished: bool  # whether a run counts that some policy did not finish


def _nodes(row: Row) -> float:
    return max(1.0, float(row.solve.nodes)) if row.solve else math.nan  # 0 if presolving settled it


def _fair_nodes(row: Row) -> float:
    return max(1.0, float(row.solve.fair_nodes)) if row.solve else math.nan


TIME = Measure("time", lambda row: row.time, shift=1.0, unfinished=True)
NODES = Measure("nodes", _nodes, shift=0.0, unfinished=False)
FAIR_NODES = Measure("fair nodes", _fair_nodes, shift=0.0, unfinished=False)
MEASURES = (TIME, NODES, FAIR_NODES)


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

    def runs_by(self, measure: Measure) -> dict[Run, dict[str, Row]]:
        """Return the runs that count for a measure."""
        if not measure.unfinished:
            return self.finished
        return {
            run: rows
            for run, rows in self.runs.items()
            if not any(math.isnan(measure.of(row)) for row in rows.values())
        }

    def mean(self, policy: str, measure: Measure) -> float:
        """Return the geometric mean over the runs that count; nan if there are none."""
        values = [measure.of(rows[policy]) for rows in self.runs_by(measure).values()]
        return shifted_geometric_mean(values, measure.shift) if values else math.nan

    def deviation(self, policy: str, measure: Measure) -> float:
        """Return the mean over instances of the deviation over seeds, in percent."""
        by_instance: dict[str, list[float]] = defaultdict(list)
        for (instance, _), rows in self.runs_by(measure).items():
            by_instance[instance].append(measure.of(rows[policy]))
        return mean_deviation_percent(list(by_instance.values()))

    def difference(self, policy: str, other: str, measure: Measure) -> Difference:
        """Compare two policies on the same runs."""
        pairs: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for (instance, _), rows in self.runs_by(measure).items():
            pairs[instance][0].append(measure.of(rows[policy]))
            pairs[instance][1].append(measure.of(rows[other]))
        return compare(list(pairs.values()), measure.shift)

    def best(self, measure: Measure) -> str | None:
        """Return the policy that is better than each other one, significantly; else nobody."""
        if len(self.policies) < 2 or not self.runs_by(measure):
            return None
        first = min(self.policies, key=lambda policy: self.mean(policy, measure))
        others = [p for p in self.policies if p != first]
        differences = [self.difference(first, p, measure) for p in others]
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
        incomplete = len(runs) - len(complete)
        # Where every policy failed, a file that cannot be read say, there is nothing to compare.
        tried = {
            run: found
            for run, found in complete.items()
            if any(row.status != "failed" for row in found.values())
        }
        chosen = baseline or (SCIP_DEFAULT if SCIP_DEFAULT in names else names[-1])
        groups.append(Group(*key, names, chosen, tried, incomplete))
    return groups


def _order(names: Iterable[str]) -> tuple[str, ...]:
    """Put policies in the same order everywhere: backbones, a user's own, SCIP's rules."""
    from solver_plugins.solve import scip_rules

    def place(name: str) -> tuple[int, int, str]:
        if name in KINDS:
            return 0, KINDS.index(name), ""
        if name not in scip_rules():
            return 1, 0, ""  # as they came
        return 2, int(name != SCIP_DEFAULT), name

    return tuple(sorted(names, key=place))
