"""The pictures of searches: how the gap falls over time, and predictions by their true value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipelines.element_level.predict import BINS, Accuracy
from pipelines.element_level.summary import GAP_SHIFT, Searches
from pipelines.report.page import COLOURS, DASHES, Picture


def gap_curves(panels: Sequence[tuple[str, Searches]]) -> Picture:
    """Draw the mean gap of each method over time, an evaluation a panel, two panels a row."""
    columns = min(len(panels), 2)
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(4.6 if columns == 1 else 8.2, 3.6 * rows), layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False).ravel()
    # A method looks the same in every panel.
    labels = list(dict.fromkeys(label for _, one in panels for label in one.labels))
    for axes, (title, searches) in zip(all_axes, panels, strict=False):
        _draw_gaps(axes, searches, labels)
        axes.set_title(title)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    all_axes[0].legend(frameon=False)
    return Picture(
        figure,
        "Mean primal gap over the searches of each method, prediction included; 0.01 % stands "
        "for anything below it.",
        f"Mean primal gap over time for {', '.join(labels)}",
    )


def _draw_gaps(axes: Axes, searches: Searches, labels: Sequence[str]) -> None:
    seconds = np.linspace(0, searches.horizon, 400)
    for label in searches.labels:
        number = labels.index(label)
        axes.step(
            seconds,
            100 * np.maximum(searches.mean_gap(label, seconds), GAP_SHIFT),  # a log scale has no 0
            where="post",
            label=label,
            color=COLOURS[number % len(COLOURS)],
            linestyle=DASHES[number % len(DASHES)],
        )
    axes.set(xlabel="seconds", ylabel="mean primal gap (%)", yscale="log")
    axes.set_xlim(0, searches.horizon)
    axes.grid(color="#d8dee4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def histograms(accuracies: Mapping[tuple[str, int], Accuracy]) -> list[Picture]:
    """Draw the predicted probabilities by true value, a picture a backbone."""
    return [
        _histogram(name, [a for (backbone, _), a in accuracies.items() if backbone == name])
        for name in sorted({backbone for backbone, _ in accuracies})
    ]


def _histogram(name: str, accuracies: Sequence[Accuracy]) -> Picture:
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    edges = np.linspace(0, 1, BINS + 1)
    for value, colour in ((0, COLOURS[0]), (1, COLOURS[1])):
        counts = np.sum([a.ones if value else a.zeros for a in accuracies], axis=0)
        shares = counts / max(counts.sum(), 1)
        axes.stairs(shares, edges, fill=True, alpha=0.5, color=colour, label=f"true {value}")
    axes.set(xlabel="predicted probability of 1", ylabel="share", xlim=(0, 1), title=name)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return Picture(
        figure,
        f"{name}: predicted probabilities of the binaries that are 0 and of those that are 1 in "
        "the best known solutions; the less they overlap, the better.",
        f"Histogram of predicted probabilities by true value for {name}",
    )
