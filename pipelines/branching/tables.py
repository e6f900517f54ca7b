"""The tables of a report, for its page, terminals, papers and spreadsheets."""

from __future__ import annotations

import math

import numpy as np

from learn2branch.metrics import Difference, holm, shifted_geometric_mean, wins
from pipelines.branching.results import Row
from pipelines.branching.summary import FAIR_NODES, LEVEL, MEASURES, NODES, TIME, Group, Measure
from pipelines.report.table import Cell, Strong, Table

_BEST = f"better than each other policy, significantly (Wilcoxon, Holm, {LEVEL:.0%})."


def tables(group: Group) -> list[Table]:
    """Return the tables of a group, those that its policies have numbers for."""
    made = [solving_table(group), tree_table(group)]
    if len(group.policies) > 1:
        made.append(difference_table(group))
    if _learned(group):
        made.append(decision_table(group))
    return made


def solving_table(group: Group) -> Table:
    """Return time, wins, solved and nodes, as Gasse et al. (2019) report them."""
    times = [[r[p].time if r[p].finished else math.inf for p in group.policies]
             for r in group.runs.values()]  # fmt: skip
    won = wins(times) if times else [0] * len(group.policies)
    fastest = group.best(TIME)
    fewest = group.best(NODES)
    fairest = group.best(FAIR_NODES)
    rows: list[list[Cell]] = []
    for number, policy in enumerate(group.policies):
        solved = sum(rows_[policy].finished for rows_ in group.runs.values())
        rows.append(
            [
                policy,
                _strong_if(policy == fastest, _mean(group, policy, TIME)),
                f"{won[number]} / {solved}",
                f"{solved} / {len(group.runs)}",
                _strong_if(policy == fewest, _mean(group, policy, NODES)),
                _strong_if(policy == fairest, _mean(group, policy, FAIR_NODES)),
            ]
        )
    return Table(
        f"Solving: {group.title}",
        ["policy", "time (s)", "wins / solved", "solved", "nodes", "fair nodes"],
        rows,
        f"{_runs(group)}. Time: 1-shifted geometric mean, the limit where a run did not finish"
        f"{_left_out(group)}. "
        f"Nodes: geometric mean over the {_counted(len(group.finished), 'run')} that all policies "
        "finished. ± mean standard deviation per instance over its seeds.",
        strong=_BEST,
    )


def tree_table(group: Group) -> Table:
    """Return the tree sizes as the paper reports them, and the largest depths."""
    fewest = group.best(NODES)
    fairest = group.best(FAIR_NODES)
    rows: list[list[Cell]] = []
    for policy in group.policies:
        solves = [rows_[policy].solve for rows_ in group.finished.values()]
        depth = np.mean([s.max_depth for s in solves if s]) if solves else math.nan
        lps = [s.lp_iterations / max(1, s.nodes) for s in solves if s]
        rows.append(
            [
                policy,
                _strong_if(policy == fewest, _mean(group, policy, NODES)),
                _strong_if(policy == fairest, _mean(group, policy, FAIR_NODES)),
                _number(float(depth)),
                _number(float(np.mean(lps)) if lps else math.nan),
            ]
        )
    return Table(
        f"Trees: {group.title}",
        ["policy", "nodes", "fair nodes", "depth", "LP iterations a node"],
        rows,
        f"Over the {_counted(len(group.finished), 'run')} that all policies finished. Nodes: "
        "geometric mean ± mean standard deviation per instance. Fair nodes add two for every call "
        "of strong branching that cut the node off or reduced domains instead of branching.",
        strong=_BEST,
    )


def difference_table(group: Group) -> Table:
    """Return every policy against the baseline, with intervals and tests."""
    others = [policy for policy in group.policies if policy != group.baseline]
    cases = [(measure, policy) for measure in MEASURES for policy in others]
    differences = [group.difference(policy, group.baseline, measure) for measure, policy in cases]
    adjusted = holm([d.p_value for d in differences])
    rows: list[list[Cell]] = []
    for (measure, policy), d, p in zip(cases, differences, adjusted, strict=True):
        verdict = _verdict(d, p)
        interval = "–" if math.isnan(d.low) else f"{d.low:.2f} to {d.high:.2f}"
        ratio = "–" if math.isnan(d.ratio) else f"{d.ratio:.2f}"
        rows.append(
            [
                measure.name,
                policy,
                _strong_if(verdict == "less", ratio),
                interval,
                _p_value(p),
                verdict,
            ]
        )
    return Table(
        f"Against {group.baseline}: {group.title}",
        ["measure", "policy", "ratio", "95 % interval", "p", f"than {group.baseline}"],
        rows,
        f"Ratio to {group.baseline}'s geometric mean (of the time: 1-shifted); below 1 is better. "
        f"Interval: bootstrap over {_counted(len(group.instances), 'instance')}. p: paired "
        f"Wilcoxon test over instances, adjusted for the "
        f"{_counted(len(cases), 'comparison')} of this table (Holm).",
        words=2,
        strong="significantly less.",
    )


def decision_table(group: Group) -> Table:
    """Return what the decisions of learned policies cost, observation and inference apart."""
    rows: list[list[Cell]] = []
    for policy in _learned(group):
        solves = [solve for rows_ in group.runs.values() if (solve := rows_[policy].solve)]
        decisions = sum(solve.decisions or 0 for solve in solves)
        parts = [
            sum(solve.observation_time or 0.0 for solve in solves),
            sum(solve.inference_time or 0.0 for solve in solves),
        ]
        wall = sum(solve.wall_time for solve in solves)
        rows.append(
            [
                policy,
                _number(decisions / len(solves)),
                *(_number(1000 * part / decisions if decisions else math.nan) for part in parts),
                *(f"{part / wall:.1%}" if wall else "–" for part in parts),
            ]
        )
    return Table(
        f"Deciding: {group.title}",
        ["policy", "decisions a solve", "observing, ms", "inferring, ms", "observing", "inferring"],
        rows,
        "Wall milliseconds a decision, and shares of the wall time of all solves. Loading a policy "
        "is not in them.",
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
            nodes = [NODES.of(r[policy]) for r in found if r[policy].solve]
            cells.append(_number(shifted_geometric_mean(nodes, 0)) if nodes else "–")
        rows.append(cells)
    columns = [f"{policy} {what}" for policy in group.policies for what in ("s", "nodes")]
    return Table(
        f"Every instance: {group.title}",
        ["instance", *columns],
        rows,
        "Geometric means over the seeds; in brackets the finished of the runs, if not all.",
    )


def _runs(group: Group) -> str:
    instances, runs = _counted(len(group.instances), "instance"), _counted(len(group.runs), "run")
    return f"{instances}, {_counted(group.seeds, 'seed')}, {runs} a policy"


def _left_out(group: Group) -> str:
    """Say how many runs a limit of nodes ended, which have no time to speak of."""
    count = len(group.runs) - len(group.runs_by(TIME))
    return f", without {_counted(count, 'run')} that met the limit of nodes" if count else ""


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _verdict(difference: Difference, p: float) -> str:
    if math.isnan(p) or p >= LEVEL:
        return "not significant"
    if difference.high < 1:
        return "less"
    return "more" if difference.low > 1 else "not significant"


def _learned(group: Group) -> list[str]:
    """Return the policies that decide by themselves: SCIP's rules have no decisions to tell."""

    def decides(rows: dict[str, Row], policy: str) -> bool:
        solve = rows[policy].solve
        return solve is not None and solve.decisions is not None

    return [p for p in group.policies if any(decides(rows, p) for rows in group.runs.values())]


def _mean(group: Group, policy: str, measure: Measure) -> str:
    text, deviation = _number(group.mean(policy, measure)), group.deviation(policy, measure)
    return text if math.isnan(deviation) else f"{text} ± {deviation:.0f} %"


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
