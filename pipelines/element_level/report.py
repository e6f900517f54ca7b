"""`report.html` of searches: accuracies, gaps and integrals, and how the gap falls over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from learn2branch.errors import InputError
from learn2branch.metrics import (
    compare,
    holm,
    primal_gap,
    primal_integral,
    shifted_geometric_mean,
)
from learn2branch.runs import replace_file
from pipelines.element_level.predict import BINS, Accuracy
from pipelines.element_level.results import ACCURACY, Key, Row, read_accuracies, read_results
from pipelines.report.page import (
    COLOURS,
    DASHES,
    Facts,
    Folded,
    Gallery,
    Notice,
    Page,
    Part,
    Picture,
    Section,
    Text,
)
from pipelines.report.table import Table

FILE = "report.html"
_GAP_SHIFT, _INTEGRAL_SHIFT = 1e-4, 0.1  # of the geometric means: 0.01 % and 0.1 s
_MEANINGS = (
    ("gap", "|best known - found| / max(|best known|, |found|) at the time limit; 100 % without a "
            "solution or with the other sign (primal gap of the paper)."),
    ("integral", "The area under the gap from 0 to the time limit, in seconds (primal integral)."),
    ("best known", "The best objective value over all searches of the instance and its longer "
                   "reference run."),
    ("geometric", "Geometric mean; gaps with 0.01 % added and integrals with 0.1 s, as some are 0, "
                  "and the same taken off again."),
    ("MCC, M-F1, MSE, E-rate", "Matthews correlation, mean of the F1 of ones and zeros, mean "
                               "squared error of the probability, and share of wrong values "
                               "at 0.5, over all binaries of the test instances, against the "
                               "best solution of the reference run."),
    ("majority", "Always predicting the more frequent value."),
    ("empty regions", "Share of searches in which a trust region was proved to hold no solution."),
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """Rows and accuracies of one evaluation."""

    rows: list[Row]
    accuracies: dict[tuple[str, int], Accuracy]  # by backbone and training seed

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError("there are no searches to report: run l2b element evaluate")

    @property
    def labels(self) -> list[str]:
        """The methods, the solver alone first."""
        found = dict.fromkeys(row.label for row in self.rows)
        return sorted(found, key=lambda label: ("-" in label, label))

    @property
    def horizon(self) -> float:
        """The time limit."""
        return max(row.time_limit for row in self.rows)

    def best_known(self) -> dict[str, float]:
        """Return the best value of each instance, over all searches and the reference."""
        best: dict[str, float] = {}
        for row in self.rows:
            values = [v for v in (row.objective, row.best_known) if v is not None]
            values += [best[row.instance]] if row.instance in best else []
            if values:
                best[row.instance] = max(values) if row.maximise else min(values)
        return best

    def accuracy_table(self) -> Table:
        """Return how right the predictions are, by backbone."""
        groups: dict[str, list[Accuracy]] = defaultdict(list)
        for (backbone, _), accuracy in self.accuracies.items():
            groups[backbone].append(accuracy)
        some = next(iter(self.accuracies.values()))
        rows = [("majority", "", *_figures([some.majority]))]
        rows += [(name, str(len(all_)), *_figures(all_)) for name, all_ in sorted(groups.items())]
        return Table(
            "Predicting binary variables",
            ("backbone", "trainings", "MCC", "M-F1", "MSE", "E-rate"),
            rows,
            f"{some.confusion.total:,} binaries. Mean ± standard deviation over trainings.",
        )

    def search_table(self) -> Table:
        """Return gaps and integrals, by method."""
        gaps, integrals = self.measures()
        rows = []
        for label in self.labels:
            members = [row for row in self.rows if row.label == label]
            found = sum(row.objective is not None for row in members)
            empty = np.mean(["infeasible" in row.phases for row in members])
            gap, integral = [gaps[r.key] for r in members], [integrals[r.key] for r in members]
            rows.append(
                (
                    label,
                    str(len(members)),
                    f"{100 * np.mean(gap):.3f} %",
                    f"{100 * shifted_geometric_mean(gap, _GAP_SHIFT):.3f} %",
                    f"{np.mean(integral):.3f}",
                    f"{shifted_geometric_mean(integral, _INTEGRAL_SHIFT):.3f}",
                    f"{100 * np.mean([value < 1e-9 for value in gap]):.0f} %",
                    str(found),
                    f"{100 * empty:.0f} %",
                    f"{np.mean([row.prediction_seconds for row in members]):.2f} s",
                )
            )
        return Table(
            f"Solutions after {self.horizon:g} s",
            ("method", "searches", "gap", "geometric", "integral", "geometric", "at best known",
             "with a solution", "empty regions", "predicting"),
            rows,
            "Gaps and integrals: lower is better.",
        )  # fmt: skip

    def difference_table(self) -> Table | None:
        """Return the methods against the solver alone, and backbones against each other."""
        pairs = self._pairs()
        if not pairs:
            return None
        _, integrals = self.measures()
        by_label: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            by_label[row.label][row.instance].append(integrals[row.key])
        means = {
            label: {instance: np.mean(values) for instance, values in found.items()}
            for label, found in by_label.items()
        }
        differences = [
            compare(
                [
                    ([means[label][instance]], [means[other][instance]])
                    for instance in means[label]
                    if instance in means[other]
                ],
                _INTEGRAL_SHIFT,
            )
            for label, other in pairs
        ]
        adjusted = holm([d.p_value for d in differences])
        return Table(
            "Primal integrals as ratios",
            ("method", "to", "ratio", "95 %", "p", "instances"),
            [
                (*pair, f"{d.ratio:.3f}", f"{d.low:.3f}–{d.high:.3f}", f"{p:.3f}", str(d.instances))
                for pair, d, p in zip(pairs, differences, adjusted, strict=True)
            ],
            "Below 1 is better. Bootstrap interval over instances; paired Wilcoxon test over "
            f"instances, adjusted for the {len(pairs)} comparisons of this table (Holm).",
            words=2,
        )

    def _pairs(self) -> list[tuple[str, str]]:
        """Return what to compare: all with the solver alone, and backbones under one method."""
        alone, others = self.labels[0], self.labels[1:]
        pairs = [] if "-" in alone else [(label, alone) for label in others]
        for label in self.labels:
            method, _, backbone = label.partition("-")
            if backbone == "dualattn" and (rival := f"{method}-bgnn") in self.labels:
                pairs.append((label, rival))
        return pairs

    def instance_table(self) -> Table:
        """Return every search."""
        gaps, integrals = self.measures()
        best = self.best_known()
        rows = [
            (row.instance, row.label, str(row.training_seed), str(row.seed),
             "none" if row.objective is None else f"{row.objective:.6g}",
             f"{best[row.instance]:.6g}" if row.instance in best else "",
             f"{100 * gaps[row.key]:.3f} %", f"{integrals[row.key]:.2f}", row.status, row.phases)
            for row in sorted(self.rows, key=lambda row: row.key)
        ]  # fmt: skip
        return Table(
            "Every search",
            ("instance", "method", "training", "seed", "found", "best known", "gap", "integral",
             "status", "phases"),
            rows,
            words=2,
        )  # fmt: skip

    def measures(self) -> tuple[dict[Key, float], dict[Key, float]]:
        """Return the primal gap and the primal integral of each search."""
        best = self.best_known()
        gaps = {
            row.key: primal_gap(row.objective, best.get(row.instance, 0.0)) for row in self.rows
        }
        integrals = {
            row.key: primal_integral(
                row.times, row.objectives, best.get(row.instance, 0.0), row.time_limit
            )
            for row in self.rows
        }
        return gaps, integrals

    def tables(self) -> list[Table]:
        """Return the tables a terminal shows."""
        differences = self.difference_table()
        return [
            *([self.accuracy_table()] if self.accuracies else []),
            self.search_table(),
            *([differences] if differences else []),
        ]

    def page(self) -> Page:
        """Return the page."""
        failed = [row for row in self.rows if row.error]
        lead: list[Part] = [Text(self._finding())]
        if failed:
            first = f"{failed[0].instance}, {failed[0].label}: {failed[0].error}"
            lead.append(Notice("error", f"{len(failed)} searches failed, the first {first}"))
        if rejected := sum(row.rejected for row in self.rows):
            sentence = "reported solutions did not satisfy the instance and were not counted."
            lead.append(Notice("warning", f"{rejected} {sentence}"))
        accuracy: list[Part] = []
        if self.accuracies:
            accuracy = [self.accuracy_table(), Gallery(self.histograms())]
        differences = self.difference_table()
        searches: list[Part] = [self.search_table(), *([differences] if differences else [])]
        searches += [Gallery([self.curves()]), Folded("Every search", self.instance_table())]
        sections = [Section("Predictions", accuracy)] if accuracy else []
        sections += [
            Section("Searches", searches),
            Section("How to read it", [Facts(_MEANINGS)]),
            Section("How it was run", [Facts(self._how())]),
        ]
        return Page("Predicting binary variables, and searching near them", lead, sections)

    def write(self, path: Path) -> Path:
        """Write the page as one file."""
        replace_file(path, self.page().html().encode())
        return path

    def curves(self) -> Picture:
        """Draw the mean gap of each method over time."""
        best, grid = self.best_known(), np.linspace(0, self.horizon, 400)
        figure = Figure(figsize=(4.6, 3.6), layout="constrained")
        axes = figure.add_subplot()
        for number, label in enumerate(self.labels):
            members = [row for row in self.rows if row.label == label]
            curve = np.mean(
                [_gap_at(row, best.get(row.instance, 0.0), grid) for row in members], axis=0
            )
            axes.step(
                grid,
                100 * np.maximum(curve, _GAP_SHIFT),  # zero has no place on a log scale
                where="post",
                label=label,
                color=COLOURS[number % len(COLOURS)],
                linestyle=DASHES[number % len(DASHES)],
            )
        axes.set(xlabel="seconds", ylabel="mean primal gap (%)", yscale="log")
        axes.set_xlim(0, self.horizon)
        axes.grid(color="#d8dee4", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return Picture(
            figure,
            "Mean primal gap over the searches of each method, prediction included; 0.01 % stands "
            "for anything below it.",
            f"Mean primal gap over time for {', '.join(self.labels)}",
        )

    def histograms(self) -> list[Picture]:
        """Draw the predicted probabilities by true value, a picture a backbone."""
        return [
            _histogram(
                name, [a for (backbone, _), a in self.accuracies.items() if backbone == name]
            )
            for name in sorted({backbone for backbone, _ in self.accuracies})
        ]

    def _finding(self) -> str:
        _, integrals = self.measures()
        means = {
            label: np.mean([integrals[row.key] for row in self.rows if row.label == label])
            for label in self.labels
        }
        best = min(means, key=lambda label: means[label])
        listed = ", ".join(f"{label} {mean:.2f}" for label, mean in means.items())
        instances = len({row.instance for row in self.rows})
        return (
            f"Mean primal integral over {instances} instances and {self.horizon:g} s: {listed}. "
            f"The lowest is that of {best}."
        )

    def _how(self) -> list[tuple[str, str]]:
        def all_of(name: str) -> str:
            return "; ".join(dict.fromkeys(str(getattr(row, name)) for row in self.rows))

        started = sorted(row.started for row in self.rows if row.started) or [""]
        models = dict.fromkeys(row.model for row in self.rows if row.model)
        return [
            ("command", all_of("command")),
            ("solver", f"{all_of('solver')}, one thread, heuristics emphasised, for every method"),
            ("time limit", f"{all_of('time_limit')} s"),
            *((f"model {number}", name) for number, name in enumerate(models, start=1)),
            ("at a time", f"{all_of('jobs')} searches"),
            ("machine", all_of("machine")),
            ("versions", all_of("versions")),
            ("when", f"{started[0]} to {started[-1]}"),
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


def read_report(folder: Path | str) -> Report:
    """Read what an evaluation left in its folder."""
    return Report(read_results(folder), read_accuracies(Path(folder) / ACCURACY))


def _gap_at(row: Row, best_known: float, grid: np.ndarray) -> np.ndarray:
    gaps = np.array([1.0, *(primal_gap(value, best_known) for value in row.objectives)])
    return gaps[np.searchsorted(np.array(row.times), grid, side="right")]


def _figures(accuracies: Sequence[Accuracy]) -> tuple[str, ...]:
    def show(values: list[float], scale: float = 1.0, unit: str = "", digits: int = 4) -> str:
        spread = ""
        if len(values) > 1:
            spread = f" ± {scale * np.std(values, ddof=1):.{digits}f}"
        return f"{scale * np.mean(values):.{digits}f}{spread}{unit}"

    return (
        show([a.confusion.mcc for a in accuracies]),
        show([a.confusion.macro_f1 for a in accuracies]),
        show([a.mse for a in accuracies]),
        show([a.confusion.error_rate for a in accuracies], 100, " %", 2),
    )
