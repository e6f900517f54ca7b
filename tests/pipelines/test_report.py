import csv
import io
import random
import re
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from learn2branch.errors import InputError
from pipelines.branching.findings import findings
from pipelines.branching.report import make_report, read_report, side_by_side
from pipelines.branching.results import Circumstances, Results, Row, Trial
from pipelines.branching.summary import group_rows
from pipelines.branching.tables import (
    decision_table,
    difference_table,
    solving_table,
    tables,
)
from pipelines.cli import main
from pipelines.report.page import Notice, Page, Section, Text
from pipelines.report.table import Strong, Table
from solver_plugins.solve import Solve

HOW = Circumstances(
    protocol="gasse", time_limit=100.0, node_limit=None, jobs=1, cores=4, free_cores=4,
    instance_hash="abc", policy_origin="SCIP's rule", started="2026-01-01T00:00:00+00:00",
    machine="a machine", versions="SCIP 10.0.0", command="l2b evaluate --problem setcover",
)  # fmt: skip
BLANK = {field.name: 0 for field in fields(Solve)}


def make_row(
    policy: str,
    instance: int = 0,
    seed: int = 0,
    time: float = 1.0,
    nodes: int = 10,
    **changes: object,
) -> Row:
    """Return a row as an evaluation could have written it."""
    solve = Solve(**{
        **BLANK, "status": "optimal", "objective": 5.0, "dual_bound": 5.0, "gap": 0.0,
        "nodes": nodes, "fair_nodes": nodes, "wall_time": time, "cpu_time": time,
        "lp_time": time / 2, "strong_branching_time": 0.0, "depths": (1, nodes - 1),
        "decisions": None, "fallbacks": None, "observation_time": None, "inference_time": None,
        **changes,
    })  # type: ignore[arg-type]  # fmt: skip
    trial = Trial("setcover", "test", f"instance_{instance:04d}", policy, seed)
    return Row(trial, solve.status, solve, "", HOW)


def planted(ratio: float, instances: int = 20, seeds: int = 3, noise: float = 0.05) -> list[Row]:
    """Return rows in which `ours` needs `ratio` times what `relpscost` needs, with some noise."""
    rng = random.Random(1)
    rows = []
    for i in range(instances):
        size = rng.uniform(20, 2000)
        for seed in range(seeds):
            for policy, factor in (("ours", ratio), ("relpscost", 1.0)):
                factor *= rng.uniform(1 - noise, 1 + noise)
                rows.append(make_row(policy, i, seed, size / 20 * factor, round(size * factor)))
    return rows


def write(folder: Path, rows: list[Row]) -> Path:
    with Results(folder / "results.csv") as results:
        for row in rows:
            results.append(row)
    return folder


def bold_cells(table: Table) -> list[str]:
    return [str(cell) for row in table.rows for cell in row if isinstance(cell, Strong)]


def test_a_planted_difference_is_found_with_its_interval_and_in_bold() -> None:
    (group,) = group_rows(planted(0.8))
    table = difference_table(group)
    for row in table.rows:
        low, high = map(float, str(row[3]).split(" to "))
        assert 0.78 < low < 0.82 < high + 0.02 < 0.86
        assert str(row[4]) == "< 0.001" and row[5] == "less"
    assert len(bold_cells(table)) == 3
    assert len(bold_cells(solving_table(group))) == 3
    assert "ours needs 0.8" in findings(group)


def test_a_difference_that_is_not_significant_is_never_bold() -> None:
    (group,) = group_rows(planted(1.0, noise=0.5))
    assert all(row[5] == "not significant" for row in difference_table(group).rows)
    assert bold_cells(difference_table(group)) == bold_cells(solving_table(group)) == []
    # Nor is one that four instances cannot show, however large it is.
    (group,) = group_rows(planted(0.1, instances=4))
    assert bold_cells(difference_table(group)) == bold_cells(solving_table(group)) == []


def test_a_policy_that_is_worse_is_called_so_and_not_bold() -> None:
    (group,) = group_rows(planted(1.5))
    table = difference_table(group)
    assert [row[5] for row in table.rows] == ["more"] * 3 and bold_cells(table) == []


def test_time_outs_count_with_the_limit_and_leave_the_node_counts() -> None:
    rows = [make_row("ours", i, 0, 9.0, 100) for i in range(3)]
    rows += [make_row("relpscost", i, 0, 3.0, 50) for i in range(2)]
    rows.append(make_row("relpscost", 2, 0, 100.0, 9999, status="timelimit"))
    (group,) = group_rows(rows)
    ours, theirs = solving_table(group).rows
    assert [str(c) for c in ours] == ["ours", "9.00", "1 / 3", "3 / 3", "100.0", "100.0"]
    # (4 * 4 * 101) ** (1 / 3) - 1 = 10.7; nodes over the two that both finished
    assert [str(c) for c in theirs] == ["relpscost", "10.7", "2 / 2", "2 / 3", "50.0", "50.0"]


def test_a_limit_of_nodes_leaves_no_time_to_compare() -> None:
    """Such a run was once charged the whole time limit."""
    rows = [make_row(policy, i, 0, 4.0, 50) for policy in ("ours", "relpscost") for i in range(3)]
    rows.append(make_row("ours", 3, 0, 0.5, 5, status="totalnodelimit"))
    rows.append(make_row("relpscost", 3, 0, 2.0, 9))
    (group,) = group_rows(rows)
    table = solving_table(group)
    assert [str(row[1]) for row in table.rows] == ["4.00", "4.00"]
    assert "without 1 run that met the limit of nodes" in table.note
    assert make_report(rows).page().html()  # whose pictures have no place for a missing time


def test_an_instance_on_which_every_policy_failed_counts_for_none() -> None:
    rows = [make_row(policy, i, 0, 4.0, 50) for policy in ("ours", "relpscost") for i in range(3)]
    torn = [replace(row, status="failed", solve=None, error="torn") for row in rows[2::3]]
    (group,) = group_rows([row for row in rows if row.trial.instance != "instance_0002"] + torn)
    assert len(group.runs) == 2 and group.incomplete == 0
    assert [str(row[3]) for row in solving_table(group).rows] == ["2 / 2", "2 / 2"]


def test_deviation_is_the_mean_over_instances_of_that_over_seeds() -> None:
    nodes = {0: (90, 110), 1: (1000, 1000)}
    rows = [
        make_row("pscost", i, s, nodes=n) for i, pair in nodes.items() for s, n in enumerate(pair)
    ]
    (group,) = group_rows(rows)
    assert str(solving_table(group).rows[0][4]) == "315.4 ± 7 %"  # 14.1 % and 0 %


def test_learned_policies_come_first_and_the_baseline_can_be_chosen() -> None:
    rows = [make_row(policy) for policy in ("relpscost", "mine", "pscost")]
    (group,) = group_rows(rows)
    assert group.policies == ("mine", "relpscost", "pscost") and group.baseline == "relpscost"
    (group,) = group_rows(rows, baseline="pscost")
    assert group.baseline == "pscost"
    with pytest.raises(InputError, match="no results for setcover test"):
        group_rows(rows, baseline="bgnn")


def test_different_optima_are_an_error_and_time_outs_are_not() -> None:
    same = [make_row("a"), make_row("b", objective=5.0 + 1e-7), make_row("c", seed=1)]
    assert make_report(same).disagreements == []
    unfinished = make_row("d", objective=7.0, status="timelimit")
    assert make_report([*same, unfinished]).disagreements == []
    (sentence,) = make_report([*same, make_row("d", objective=5.1)]).disagreements
    assert (
        sentence
        == "instance_0000: a with seed 0 says optimal 5, but d with seed 0 says optimal 5.1"
    )
    infeasible = make_row("d", status="infeasible", objective=None)
    assert len(make_report([*same, infeasible]).disagreements) == 1


def test_what_deciding_costs_is_told_of_learned_policies_only() -> None:
    def decided(n: int) -> dict[str, object]:
        return {"decisions": n, "fallbacks": 0, "observation_time": 0.01, "inference_time": 0.03}

    rows = [make_row("ours", i, time=2.0, **decided(n)) for i, n in enumerate((4, 6))]
    rows += [make_row("relpscost", i) for i in range(2)]
    (group,) = group_rows(rows)
    (row,) = decision_table(group).rows
    # 5 decisions a solve; 20 and 60 ms over 10 decisions and over 4 s
    assert [str(cell) for cell in row] == ["ours", "5.00", "2.00", "6.00", "0.5%", "1.5%"]
    (rules,) = group_rows([make_row("relpscost"), make_row("pscost")])
    assert not any(table.caption.startswith("Deciding") for table in tables(rules))


@pytest.mark.parametrize("name", ["all.svg", "all.png", "all.pdf"])
def test_all_policies_are_drawn_at_a_glance(tmp_path: Path, name: str) -> None:
    write(tmp_path, planted(0.5))
    drawn = []
    for out in (tmp_path / name, tmp_path / "again" / name):
        with pytest.raises(SystemExit) as ended:
            main(["report", str(tmp_path), "--picture", str(out), "--format", "csv"])
        assert ended.value.code == 0
        drawn.append(out.read_bytes())
    assert drawn[0].startswith({"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[name[4:]])
    assert drawn[0] == drawn[1]


def test_the_glance_shows_each_ratio_where_it_is() -> None:
    transfer = [replace(r, trial=replace(r.trial, split="transfer")) for r in planted(2.0)]
    picture = make_report([*planted(0.5), *transfer]).picture()
    time, nodes = picture.figure.axes
    for axes, near in ((time, 0.1), (nodes, 0.03)):  # 1 s is added to both times
        (points,) = [line for line in axes.lines if line.get_marker() == "o"]
        assert points.get_xdata() == pytest.approx([0.5, 2.0], rel=near)
    assert [text.get_text() for text in time.get_yticklabels()] == [
        "Set cover, test",
        "Set cover, transfer",
    ]


def test_a_picture_that_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none of .svg"):
        make_report(planted(0.5)).picture().write(tmp_path / "all.docx")
    with pytest.raises(InputError, match="nothing to compare"):
        make_report([make_row("a")]).picture()


def test_what_a_reader_must_know_is_said() -> None:
    crowded = replace(make_row("a"), circumstances=replace(HOW, jobs=4, free_cores=1))
    waiting = make_row("a", 1, time=10.0, cpu_time=3.0)
    lost = replace(make_row("a", 2), status="crashed", solve=None, error="its process ended")
    fallen = make_row("b", decisions=10, fallbacks=5)
    other = replace(make_row("b", 1), circumstances=replace(HOW, versions="SCIP 9.2.0"))
    report = make_report([crowded, *[waiting] * 4, lost, fallen, other])
    text = report.text()
    for sentence in (
        "Times are not comparable: with --jobs 4 only 1 of 4 cores were free",
        "had to wait for a core",
        "1 of 8 runs gave no answer",
        "lack some policy's run",
        "b left 5 of 15 decisions to SCIP",
        "Runs differ in versions",
    ):
        assert sentence in text
    assert "Note" not in make_report(planted(1.0)).text()


def test_where_nobody_branched_times_are_called_chance() -> None:
    rows = [make_row(policy, i, nodes=1) for policy in ("ours", "relpscost") for i in range(2)]
    warning = "No solve of set cover, test branched"
    assert any(warning in sentence for sentence in make_report(rows).warnings)
    rows.append(make_row("ours", 3, nodes=2))
    rows.append(make_row("relpscost", 3, nodes=1))
    assert not any(warning in sentence for sentence in make_report(rows).warnings)


def test_several_folders_are_told_apart_only_where_they_meet() -> None:
    old, new = [make_row("ours", nodes=20), make_row("relpscost")], [make_row("ours", nodes=10)]
    rows = side_by_side({"results/old": old, "results/new": new})
    assert [row.trial.policy for row in rows] == ["ours (old)", "relpscost", "ours (new)"]
    elsewhere = [replace(row, trial=replace(row.trial, family="indset")) for row in new]
    rows = side_by_side({"results/old": old, "results/new": elsewhere})
    assert [row.trial.policy for row in rows] == ["ours", "relpscost", "ours"]
    assert len(make_report(rows).groups) == 2


TABLE = Table("Cost & use", ["who", "50 %"], [["a_b", Strong("1 ± 2")], ["c|d", "<3"]], "A note.")


def test_a_table_prints_for_terminals_papers_and_spreadsheets() -> None:
    assert TABLE.text().splitlines() == [
        "Cost & use", "who    50 %", "-----------", "a_b  1 ± 2*", "c|d      <3", "A note.",
    ]  # fmt: skip
    assert r"| a\_b | **1 ± 2** |" in TABLE.markdown() and r"| c\|d | <3 |" in TABLE.markdown()
    latex = TABLE.latex()
    assert r"\caption{Cost \& use.}" in latex and r"a\_b & \textbf{1 $\pm$ 2} \\" in latex
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows == [["table", "who", "50 %"], ["Cost & use", "a_b", "1 ± 2"],
                    ["Cost & use", "c|d", "<3"]]  # fmt: skip
    html = TABLE.html()
    assert "<strong>1 ± 2</strong>" in html and "&lt;3" in html and "Cost &amp; use" in html


def test_a_table_says_what_stands_out_in_the_way_it_is_shown() -> None:
    told = replace(TABLE, strong="the best.")
    assert told.text().endswith("A note. *: the best.")
    assert told.markdown().endswith("A note. Bold: the best.")
    assert told.latex().endswith("% A note. Bold: the best.")
    assert "A note. Bold: the best.</p>" in told.html()
    nothing_stands_out = replace(told, rows=[["a", "1"]])
    assert nothing_stands_out.text().endswith("A note.")


class Outline(HTMLParser):
    """The tags that are open, and every address the page mentions."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_well_formed_and_fetches_nothing() -> None:
    html = make_report(planted(0.9, instances=8)).page().html()
    outline = Outline()
    outline.feed(html)
    assert outline.open == []
    assert all(address.startswith(("data:", "#")) for address in outline.addresses)
    assert outline.tags.count("table") == 4 and outline.tags.count("img") == 6
    assert "script" not in outline.tags and "url(" not in html
    for part in (
        "Set cover",
        "l2b evaluate --problem setcover",
        "SCIP 10.0.0",
        "a machine",
        "gasse",
    ):
        assert part in html
    ids = set(re.findall(r'id="([^"]+)"', html))
    assert {a[1:] for a in outline.addresses if a.startswith("#")} <= ids


def test_the_same_results_give_the_same_page() -> None:
    rows = [make_row("pscost", i) for i in range(3)]
    assert make_report(rows).page().html() == make_report(rows).page().html()


def test_what_comes_from_names_cannot_become_markup() -> None:
    page = Page("<b>", [Notice("warning", "<i>"), Text("a & b")], [Section("<u>", [Text("x")])])
    assert not {"<b>", "<i>", "<u>"} & set(re.findall(r"<\w>", page.html()))


def test_reporting_wrong_results_says_so_first_and_ends_with_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, [make_row("a"), make_row("relpscost", objective=6.0)])
    assert len(read_report([tmp_path]).disagreements) == 1
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), "--format", "markdown"])
    assert ended.value.code == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("Error: wrong results") and "| a |" in captured.out
    page = make_report([make_row("a"), make_row("relpscost", objective=6.0)]).page().html()
    assert page.index("Wrong results") < page.index("<h2>")


def test_reporting_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no results yet"):
        make_report([])
