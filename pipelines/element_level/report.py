"""`report.html` of searches: accuracies, gaps and integrals, and how the gap falls over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from learn2branch.metrics import holm, shifted_geometric_mean
from learn2branch.runs import replace_file
from pipelines.element_level.pictures import gap_curves, histograms
from pipelines.element_level.predict import Accuracy
from pipelines.element_level.results import ACCURACY, read_accuracies, read_results
from pipelines.element_level.summary import GAP_SHIFT, INTEGRAL_SHIFT, Searches
from pipelines.report.page import Facts, Folded, Gallery, Notice, Page, Part, Section, Text
from pipelines.report.table import Table

FILE = "report.html"
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
    """Searches and accuracies of one evaluation, as tables and a page."""

    searches: Searches
    accuracies: dict[tuple[str, int], Accuracy]  # by backbone and training seed

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
        gaps, integrals = self.searches.gaps, self.searches.integrals
        rows = []
        for label in self.searches.labels:
            members = self.searches.of(label)
            found = sum(row.objective is not None for row in members)
            empty = np.mean(["infeasible" in row.phases for row in members])
            gap, integral = [gaps[r.key] for r in members], [integrals[r.key] for r in members]
            rows.append(
                (
                    label,
                    str(len(members)),
                    f"{100 * np.mean(gap):.3f} %",
                    f"{100 * shifted_geometric_mean(gap, GAP_SHIFT):.3f} %",
                    f"{np.mean(integral):.3f}",
                    f"{shifted_geometric_mean(integral, INTEGRAL_SHIFT):.3f}",
                    f"{100 * np.mean([value < 1e-9 for value in gap]):.0f} %",
                    str(found),
                    f"{100 * empty:.0f} %",
                    f"{np.mean([row.prediction_seconds for row in members]):.2f} s",
                )
            )
        return Table(
            f"Solutions after {self.searches.horizon:g} s",
            ("method", "searches", "gap", "geometric", "integral", "geometric", "at best known",
             "with a solution", "empty regions", "predicting"),
            rows,
            " ".join(["Gaps and integrals: lower is better.", *self._left_out()]),
        )  # fmt: skip

    def difference_table(self) -> Table | None:
        """Return the methods against the solver alone, and backbones against each other."""
        pairs = self.searches.pairs()
        if not pairs:
            return None
        differences = [self.searches.difference(*pair) for pair in pairs]
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

    def instance_table(self) -> Table:
        """Return every search."""
        gaps, integrals = self.searches.gaps, self.searches.integrals
        best = self.searches.best_known
        rows = [
            (row.instance, row.label, str(row.training_seed), str(row.seed),
             "none" if row.objective is None else f"{row.objective:.6g}",
             f"{best[row.instance]:.6g}" if row.instance in best else "",
             f"{100 * gaps[row.key]:.3f} %", f"{integrals[row.key]:.2f}", row.status, row.phases)
            for row in sorted(self.searches.rows, key=lambda row: row.key)
        ]  # fmt: skip
        return Table(
            "Every search",
            ("instance", "method", "training", "seed", "found", "best known", "gap", "integral",
             "status", "phases"),
            rows,
            words=2,
        )  # fmt: skip

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
        failed = [row for row in self.searches.rows if row.error]
        lead: list[Part] = [Text(self._finding())]
        if failed:
            first = f"{failed[0].instance}, {failed[0].label}: {failed[0].error}"
            lead.append(Notice("error", f"{len(failed)} searches failed, the first {first}"))
        if rejected := sum(row.rejected for row in self.searches.rows):
            sentence = "reported solutions did not satisfy the instance and were not counted."
            lead.append(Notice("warning", f"{rejected} {sentence}"))
        accuracy: list[Part] = []
        if self.accuracies:
            accuracy = [self.accuracy_table(), Gallery(histograms(self.accuracies))]
        differences = self.difference_table()
        searches: list[Part] = [self.search_table(), *([differences] if differences else [])]
        searches.append(Gallery([gap_curves([("", self.searches)])]))
        searches.append(Folded("Every search", self.instance_table()))
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

    def _finding(self) -> str:
        integrals = self.searches.integrals
        means = {
            label: np.mean([integrals[row.key] for row in self.searches.of(label)])
            for label in self.searches.labels
        }
        best = min(means, key=lambda label: means[label])
        listed = ", ".join(f"{label} {mean:.2f}" for label, mean in means.items())
        instances = len({row.instance for row in self.searches.compared})
        return (
            f"Mean primal integral over {instances} instances and {self.searches.horizon:g} s: "
            f"{listed}. The lowest is that of {best}."
        )

    def _left_out(self) -> list[str]:
        count = len(self.searches.rows) - len(self.searches.compared)
        if not count:
            return []
        return [
            f"Left out of {len(self.searches.rows)} searches: {count}, whose instance and seed not "
            "every method and model has."
        ]

    def _how(self) -> list[tuple[str, str]]:
        rows = self.searches.rows

        def all_of(name: str) -> str:
            return "; ".join(dict.fromkeys(str(getattr(row, name)) for row in rows))

        started = sorted(row.started for row in rows if row.started) or [""]
        models = dict.fromkeys(row.model for row in rows if row.model)
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


def read_report(folder: Path | str) -> Report:
    """Read what an evaluation left in its folder."""
    return Report(Searches(read_results(folder)), read_accuracies(Path(folder) / ACCURACY))


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
