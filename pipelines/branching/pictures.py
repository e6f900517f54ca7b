"""The pictures of a report: all groups at a glance, and each by profiles, scatters, time, depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from learn2branch.metrics import performance_profile
from pipelines.branching.results import Row
from pipelines.branching.summary import FAIR_NODES, TIME, Group
from pipelines.report.page import COLOURS, DASHES, Picture

_INK, _SOFT, _LINE = "#1b1f24", "#57606a", "#d8dee4"
# What a solve's time is made of; the rest is all else that SCIP does.
_PARTS = ("LP", "strong branching", "observation", "inference", "rest")
_PART_COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#d0d7de")
_POLICIES_SCATTERED = 3
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def pictures(group: Group) -> list[Picture]:
    """Draw what a group has the runs for."""
    drawn = []
    if group.runs:
        times = [[r.time if r.finished else math.inf for r in _row_of(group, run)]
                 for run in group.runs]  # fmt: skip
        nodes = [[_nodes(r) if r.finished else math.inf for r in _row_of(group, run)]
                 for run in group.runs]  # fmt: skip
        drawn += [profile(group, times, "time"), profile(group, nodes, "nodes")]
        others = [policy for policy in group.policies if policy != group.baseline]
        for policy in others[:_POLICIES_SCATTERED]:
            pairs = [(rows[group.baseline], rows[policy]) for rows in group.runs.values()]
            both = [(a, b) for a, b in pairs if a.finished and b.finished]
            times_of = [(a.time, b.time) for a, b in pairs if not math.isnan(a.time + b.time)]
            drawn.append(scatter(group, policy, times_of, "time (s)"))
            drawn.append(scatter(group, policy, [(_nodes(a), _nodes(b)) for a, b in both], "nodes"))
        drawn.append(time_parts(group))
    if group.finished:
        drawn.append(depths(group))
    return drawn


def overview(groups: Sequence[Group]) -> Picture:
    """Draw time and fair nodes of every policy, group by group, as ratios to the baseline."""
    baselines = list(dict.fromkeys(group.baseline for group in groups))
    policies = list(dict.fromkeys(p for g in groups for p in g.policies if p != g.baseline))
    figure = Figure(figsize=(7.6, 1.1 + 0.125 * len(groups) * (len(policies) + 1.5)))
    figure.set_layout_engine("constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, measure in zip(panels, (TIME, FAIR_NODES), strict=True):
        _plain_axes(axes)
        for number, policy in enumerate(policies):
            level = (number - (len(policies) - 1) / 2) / (len(policies) + 1.5)
            drawn = [
                (place + level, group.difference(policy, group.baseline, measure))
                for place, group in enumerate(groups)
                if policy in group.policies
            ]
            drawn = [(y, d) for y, d in drawn if not math.isnan(d.ratio)]
            for y, d in drawn:
                axes.plot([d.low, d.high], [y, y], color=COLOURS[number % len(COLOURS)])
            axes.plot(
                [d.ratio for _, d in drawn], [y for y, _ in drawn], linestyle="none", markersize=5,
                marker=_MARKERS[number % len(_MARKERS)], color=COLOURS[number % len(COLOURS)],
                label=policy if axes is panels[0] else None,
            )  # fmt: skip
        axes.axvline(1.0, color=_SOFT, linewidth=1, zorder=0)
        axes.set_xscale("log")
        axes.set_xlabel(f"{measure.name}, {' or '.join(baselines)} = 1")
        axes.grid(visible=False, axis="y")
        for place in range(1, len(groups)):
            axes.axhline(place - 0.5, color=_LINE, linewidth=0.6)
        axes.set_ylim(len(groups) - 0.5, -0.5)
        _plain_ticks(axes, axes.xaxis)
    panels[0].set_yticks(range(len(groups)), [group.title for group in groups])
    figure.supxlabel("left is better; lines are 95 % intervals", fontsize=9, color=_SOFT)
    _legend(figure, panels[0], columns=4)
    return Picture(
        figure,
        f"Every policy against {' or '.join(baselines)}: ratios of geometric means with 95 % "
        "intervals (bootstrap over instances). Left of 1 is better.",
        f"Time and fair nodes of {', '.join(policies)} as ratios to {' or '.join(baselines)}",
    )


def profile(group: Group, costs: Sequence[Sequence[float]], what: str) -> Picture:
    """Draw the share of runs finished within a factor of the best; costs: (runs, policies)."""
    figure, axes = _figure(3.5)
    factors, shares = performance_profile(costs)
    end = max(2.0, float(factors[-1]) * 1.15)
    for number, policy in enumerate(group.policies):
        values = [*shares[:, number], shares[-1, number]]
        axes.step([*factors, end], values, where="post", label=policy, **_line(number))
    axes.set_xscale("log")
    axes.set(xlim=(1, end), ylim=(0, 1.02))
    axes.set(xlabel=f"factor of the least {what}", ylabel="share of runs")
    _plain_ticks(axes, axes.xaxis)
    _legend(figure, axes)
    return Picture(
        figure,
        f"Performance profile: the share of runs that a policy finishes within a factor of the "
        f"best policy's {what}. Higher is better; at 1 stand the wins.",
        f"Performance profile of {what} for {', '.join(group.policies)}: {group.title}",
    )


def scatter(group: Group, policy: str, points: Sequence[tuple[float, float]], what: str) -> Picture:
    """Draw a policy against the baseline, a point a run."""
    figure, axes = _figure(4.1)
    x, y = np.array(points, dtype=float).reshape(-1, 2).T
    colour = COLOURS[group.policies.index(policy) % len(COLOURS)]
    axes.scatter(x, y, s=22, color=colour, alpha=0.5, linewidths=0, clip_on=False)
    values = np.concatenate([x, y])
    low, high = (values.min() / 1.25, values.max() * 1.25) if len(values) else (0.9, 2.0)
    axes.plot([low, high], [low, high], color=_SOFT, linewidth=1, zorder=0)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel=f"{group.baseline}, {what}", ylabel=f"{policy}, {what}", aspect="equal")
    _plain_ticks(axes, axes.xaxis)
    _plain_ticks(axes, axes.yaxis)
    unfinished = (
        "Runs that did not finish stand at the limit."
        if what.startswith("time")
        else "Only runs that both finished."
    )
    return Picture(
        figure,
        f"{policy} against {group.baseline}, {what}: a point a run, below the diagonal where "
        f"{policy} needs less. {unfinished}",
        f"Scatter plot of {policy} against {group.baseline}, {what}: {group.title}",
    )


def time_parts(group: Group) -> Picture:
    """Draw where the time of a solve goes, on average."""
    figure, axes = _figure(1.5 + 0.4 * len(group.policies))
    for number, policy in enumerate(group.policies):
        solves = [solve for rows in group.runs.values() if (solve := rows[policy].solve)]
        parts = np.zeros(len(_PARTS))
        for solve in solves:
            known = [solve.lp_time, solve.strong_branching_time]
            known += [solve.observation_time or 0.0, solve.inference_time or 0.0]
            parts += [*known, max(0.0, solve.wall_time - sum(known))]
        parts /= max(1, len(solves))
        left = 0.0
        for part, colour, seconds in zip(_PARTS, _PART_COLOURS, parts, strict=True):
            label = part if number == 0 else None
            axes.barh(number, seconds, left=left, color=colour, label=label, height=0.62)
            left += seconds
    axes.set_yticks(range(len(group.policies)), group.policies)
    axes.invert_yaxis()
    axes.set_xlabel("seconds a solve (mean)")
    axes.grid(visible=False, axis="y")
    _legend(figure, axes)
    return Picture(
        figure,
        "Where the time of a solve goes: LPs of nodes and diving, LPs of strong branching, a "
        "policy's observation and inference, and the rest of SCIP (presolving, cuts, heuristics, "
        "propagation).",
        f"Mean seconds of a solve by part for {', '.join(group.policies)}: {group.title}",
    )


def depths(group: Group) -> Picture:
    """Draw how many nodes the trees have at each depth, on average."""
    figure, axes = _figure(3.3)
    for number, policy in enumerate(group.policies):
        solves = [solve for rows in group.finished.values() if (solve := rows[policy].solve)]
        total = np.zeros(max((len(solve.depths) for solve in solves), default=0) + 1)
        for solve in solves:
            total[: len(solve.depths)] += solve.depths
        axes.plot(total / max(1, len(solves)), label=policy, **_line(number))
    axes.set(xlabel="depth", ylabel="nodes (mean of a solve)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(figure, axes)
    return Picture(
        figure,
        f"Nodes by depth: mean of the {len(group.finished)} runs that all policies finished.",
        f"Mean number of nodes at each depth for {', '.join(group.policies)}: {group.title}",
    )


def _row_of(group: Group, run: tuple[str, int]) -> list[Row]:
    return [group.runs[run][policy] for policy in group.policies]


def _nodes(row: Row) -> float:
    return max(1.0, float(row.solve.nodes)) if row.solve else math.inf


def _figure(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(4.6, height), layout="constrained")
    axes = figure.add_subplot()
    _plain_axes(axes)
    return figure, axes


def _plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_SOFT)
    axes.tick_params(colors=_INK, labelsize=9, which="both")
    axes.grid(color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)


def _line(number: int) -> dict[str, Any]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.9,
    }


def _legend(figure: Figure, axes: Axes, columns: int = 0) -> None:
    handles, labels = axes.get_legend_handles_labels()
    columns = columns or (3 if max(map(len, labels), default=0) < 18 else 2)
    figure.legend(
        handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9,
        handlelength=2.2, columnspacing=1.2,
    )  # fmt: skip


def _plain_ticks(axes: Axes, axis: Any) -> None:
    """Write 20, not 2 × 10¹; where few decades are shown, also their parts."""
    low, high = axes.get_xlim() if axis is axes.xaxis else axes.get_ylim()
    parts = {3: range(1, 10), 10: (1, 2, 3, 5, 7), 100: (1, 2, 5)}
    shown = next((marks for span, marks in parts.items() if high / low < span), (1,))
    axis.set_major_locator(LogLocator(subs=tuple(map(float, shown))))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())
