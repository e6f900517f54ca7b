"""`report.html`: what a table of results says, for someone who was not there.

Made from `results.csv` alone, of one folder or of several side by side.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from learn2branch.errors import InputError
from learn2branch.runs import replace_file
from pipelines.branching.findings import disagreements, findings, warnings
from pipelines.branching.pictures import overview, pictures
from pipelines.branching.results import Row, read_results
from pipelines.branching.summary import Group, group_rows
from pipelines.branching.tables import instance_table, tables
from pipelines.report.page import Facts, Folded, Gallery, Notice, Page, Part, Picture, Section, Text
from pipelines.report.table import Table

FILE = "report.html"
_PROTOCOLS = {
    "gasse": "gasse (Gasse et al. 2019): cuts at the root only, no restarts, rows and columns "
    "permuted and SCIP seeded by the seed, all else as SCIP has it",
    "default": "default: SCIP as it comes, rows and columns permuted and SCIP seeded by the seed",
}
_MEANINGS = (
    ("time", "Wall seconds of presolving and solving, a policy's observation and inference "
             "included; reading the file and loading the policy are not."),
    ("nodes", "Processed nodes of the search tree, as SCIP counts them."),
    ("fair nodes", "Nodes plus two for every call of a branching rule that ended without "
                   "branching because strong branching cut the node off or reduced domains "
                   "(Gamrath and Schubert 2018): what the same knowledge would cost as nodes."),
    ("wins", "Runs in which the policy was the fastest to finish."),
    ("±", "Standard deviation over the seeds of an instance, divided by their mean, averaged over "
          "instances."),
    ("ratio", "Quotient of the geometric means of policy and baseline (of times: shifted by 1 s); "
              "the seeds of an instance are averaged first."),
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """The rows of one or several folders, compared."""

    rows: list[Row]
    groups: list[Group]

    @property
    def disagreements(self) -> list[str]:
        """Instances on whose optimum finished runs disagree, a sentence each."""
        return disagreements(self.rows)

    @property
    def warnings(self) -> list[str]:
        """What a reader should beware of."""
        return warnings(self.rows, self.groups)

    def tables(self) -> list[Table]:
        """Return all tables, group by group."""
        return [table for group in self.groups for table in tables(group)]

    def text(self) -> str:
        """Return the summary for a terminal."""
        notes = [f"Note: {warning}" for warning in self.warnings]
        return "\n\n".join([*(table.text() for table in self.tables()), *notes])

    def page(self) -> Page:
        """Return the page."""
        lead: list[Part] = [
            Notice("error", f"Wrong results: finished runs disagree. {sentence}")
            for sentence in self.disagreements
        ]
        lead += [Text(text) for group in self.groups if (text := findings(group))]
        lead += [Notice("warning", warning) for warning in self.warnings]
        if len(compared := self._compared()) > 1:
            lead.append(Gallery([overview(compared)]))
        sections = [Section(group.title, _parts(group)) for group in self.groups]
        sections += [
            Section("How to read it", [Facts(_MEANINGS)]),
            Section("How it was run", [Facts(_how(self.rows))]),
        ]
        families = list(dict.fromkeys(group.title.split(",")[0] for group in self.groups))
        policies = list(dict.fromkeys(p for group in self.groups for p in group.policies))
        title = f"Branching: {', '.join(families)}"
        if len(policies) > 1:
            title += f" with {', '.join(policies[:-1])} and {policies[-1]}"
        return Page(title, lead, sections)

    def picture(self) -> Picture:
        """Return all groups at a glance."""
        compared = self._compared()
        if not compared:
            raise InputError("there is nothing to compare yet: evaluate two policies or more")
        return overview(compared)

    def _compared(self) -> list[Group]:
        return [group for group in self.groups if group.runs and len(group.policies) > 1]

    def write(self, path: Path | str) -> Path:
        """Write the page as one file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, self.page().html().encode())
        return path


def make_report(rows: Sequence[Row], baseline: str | None = None) -> Report:
    """Compare rows; without a baseline SCIP's default rule is it, where it was run."""
    if not rows:
        raise InputError("there are no results yet to report: run l2b evaluate")
    return Report(list(rows), group_rows(rows, baseline))


def read_report(folders: Sequence[Path | str], baseline: str | None = None) -> Report:
    """Read the results of one or several folders; what several ran is told apart by its folder."""
    return make_report(side_by_side({str(f): read_results(f) for f in folders}), baseline)


def side_by_side(sources: dict[str, list[Row]]) -> list[Row]:
    """Put rows of several sources together, naming the source of a policy that several have."""
    names = dict(zip(sources, _short_names(list(sources)), strict=True))
    ran = {source: {row.trial for row in rows} for source, rows in sources.items()}
    shared = {
        trial.policy
        for source, trials in ran.items()
        for other, others in ran.items()
        if other != source
        for trial in trials & others
    }
    return [
        replace(row, trial=replace(row.trial, policy=f"{row.trial.policy} ({names[source]})"))
        if row.trial.policy in shared
        else row
        for source, rows in sources.items()
        for row in rows
    ]


def _short_names(sources: list[str]) -> list[str]:
    paths = [Path(s).parent if Path(s).suffix == ".csv" else Path(s) for s in sources]
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _parts(group: Group) -> list[Part]:
    if not group.runs:
        return [Text("No run has been made with every policy yet.")]
    folded = Folded("Every instance", instance_table(group))
    return [*tables(group), Gallery(pictures(group)), folded]


def _protocol(name: str) -> str:
    """Return a protocol in words, with the parameters that a user set beside it."""
    name, _, parameters = name.partition(", ")
    return _PROTOCOLS.get(name, name) + (f"; and {parameters}" if parameters else "")


def _how(rows: Sequence[Row]) -> list[tuple[str, str]]:
    def all_of(name: str) -> str:
        return "; ".join(dict.fromkeys(str(getattr(r.circumstances, name)) for r in rows))

    protocols = dict.fromkeys(row.circumstances.protocol for row in rows)
    shares = [r.solve.cpu_time / r.solve.wall_time for r in rows if r.solve and r.solve.wall_time]
    memory = [r.solve.peak_memory for r in rows if r.solve]
    policies = dict.fromkeys((row.trial.policy, row.circumstances.policy_origin) for row in rows)
    seeds = sorted({row.trial.seed for row in rows})
    started = sorted(row.circumstances.started for row in rows)
    limits = f"{all_of('time_limit')} s"
    nodes = sorted({n for row in rows if (n := row.circumstances.node_limit) is not None})
    if nodes:
        limits += f", {', '.join(map(str, nodes))} nodes"
    facts = [
        ("command", all_of("command")),
        ("protocol", "; ".join(map(_protocol, protocols))),
        ("limits", limits),
        ("seeds", ", ".join(map(str, seeds))),
        *((f"policy {label}", origin) for label, origin in policies),
        ("versions", all_of("versions")),
        ("machine", all_of("machine")),
        ("at a time", f"{all_of('jobs')} solves; free cores at the start: {all_of('free_cores')}"),
        ("a solve", "one process, one torch thread; policies take turns by instance and seed"),
    ]
    if memory:
        facts += [
            ("running", f"{statistics.median(shares):.0%} of the wall time (median)"),
            ("memory", f"at most {max(memory):,.0f} MiB a solve"),
        ]
    return [*facts, ("when", f"{started[0]} to {started[-1]}"), ("rows", str(len(rows)))]
