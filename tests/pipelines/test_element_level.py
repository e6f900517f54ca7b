import csv
import itertools
import json
import math
import re
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import binary_cross_entropy

from learn2branch import build_model, export_policy
from learn2branch.errors import InputError, WorkError
from learn2branch.features import ELEMENT
from learn2branch.metrics import primal_gap
from pipelines.cli import main
from pipelines.element_level.collect import collect
from pipelines.element_level.dataset import BinaryPrediction, Pools
from pipelines.element_level.evaluate import evaluate
from pipelines.element_level.features import element_graph
from pipelines.element_level.labels import Labels, label_files, read_labels
from pipelines.element_level.predict import Predictor, measure_accuracy
from pipelines.element_level.presets import PRESETS, trust_regions
from pipelines.element_level.report import FILE, Report, read_report
from pipelines.element_level.results import COLUMNS, Results, Row, read_results
from pipelines.element_level.search import search_file
from pipelines.element_level.summary import Searches
from pipelines.element_level.train import split_files, train
from solver_plugins.arrays import MilpArrays, read_arrays
from solver_plugins.primal import TrustRegion

LP = """Minimize
 obj: 3 b_x - 2 a_y + 0.5 z + 0 lonely
Subject To
 cover: 2 b_x + 4 a_y >= 1
 same: a_y - 5 z = 0
 cap: b_x + z + w <= 9
 nothing: 0 w <= 3
Bounds
 w free
Binary
 b_x
 a_y
 lonely
End
"""


def as_arrays(folder: Path, text: str, name: str = "small.lp") -> MilpArrays:
    path = folder / name
    path.write_text(text)
    return read_arrays(path)


# --- features ------------------------------------------------------------------------------------


def plain_features(arrays: MilpArrays) -> tuple[np.ndarray, np.ndarray]:
    """Compute raw columns as Predict-and-Search's script does, one coefficient at a time."""
    m, n = arrays.matrix.shape
    variables = [[arrays.objective[j], 0.0, 0, None, None, 0] for j in range(n)]
    constraints = []
    for i in range(m):
        total, count = 0.0, 0
        for j in range(n):
            a = arrays.matrix[i, j]
            if a == 0:
                continue
            v = variables[j]
            v[1] += a / m
            v[2] += 1
            v[3] = a if v[3] is None else max(v[3], a)
            v[4] = a if v[4] is None else min(v[4], a)
            total, count = total + a, count + 1
        rhs, lhs = arrays.rhs[i], arrays.lhs[i]
        sense, side = (2, rhs) if lhs == rhs else (1, lhs) if math.isinf(rhs) else (0, rhs)
        constraints.append([total / max(count, 1), count, side, sense])
    for j, v in enumerate(variables):
        v[3], v[4], v[5] = v[3] or 0.0, v[4] or 0.0, float(arrays.is_binary[j])
    used = [c for c in arrays.objective if c != 0]
    constraints.append([sum(used) / max(len(used), 1), len(used), 0, 0])
    return np.array(variables, float), np.array(constraints, float)


def scaled(columns: np.ndarray) -> np.ndarray:
    span = columns.max(0) - columns.min(0)
    span[span == 0] = 1
    return np.clip((columns - columns.min(0)) / span, 1e-5, 1)


def test_features_are_those_of_predict_and_search(tmp_path):
    arrays = as_arrays(tmp_path, LP)
    graph = element_graph(arrays)
    variables, constraints = plain_features(arrays)
    np.testing.assert_allclose(graph.variable_features[:, :6], scaled(variables), rtol=1e-6)
    np.testing.assert_allclose(graph.constraint_features, scaled(constraints), rtol=1e-6)
    assert graph.variable_features.shape[1] == len(ELEMENT.variable)
    assert graph.constraint_features.shape[1] == len(ELEMENT.constraint)
    assert not graph.variable_features[:, 6:].any()


def test_the_objective_is_the_last_constraint(tmp_path):
    arrays = as_arrays(tmp_path, LP)
    graph = element_graph(arrays)
    last = graph.num_constraints - 1
    assert last == arrays.num_constraints
    members = graph.edge_index[1][graph.edge_index[0] == last]
    assert sorted(arrays.names[j] for j in members) == ["a_y", "b_x", "z"]
    values = dict(zip([arrays.names[j] for j in members], graph.edge_values[-3:], strict=True))
    assert values["b_x"] == 1 and values["a_y"] == pytest.approx(-2 / 3)
    assert graph.edge_values.abs().max() <= 1


def test_infinities_and_empty_rows_leave_no_trace(tmp_path):
    for text in (LP, LP.replace("<= 9", ">= -1e30"), "Minimize\n obj: x\nBinary\n x\nEnd\n"):
        graph = element_graph(as_arrays(tmp_path, text))
        for part in (graph.variable_features, graph.constraint_features, graph.edge_values):
            assert part.isfinite().all()
        assert graph.variable_features.min() >= 0 and graph.variable_features.max() <= 1


def test_positions_follow_the_names(tmp_path):
    arrays = as_arrays(tmp_path, LP)
    bits = element_graph(arrays, position=True).variable_features[:, 6:]
    place = (bits * 2 ** torch.arange(12)).sum(1).int().tolist()
    assert [arrays.names[place.index(k)] for k in range(5)] == sorted(arrays.names)


def test_features_of_a_large_instance_take_no_loop_over_coefficients(tmp_path):
    rng = np.random.default_rng(0)
    rows = [rng.choice(2000, 20, replace=False) for _ in range(2000)]
    lines = [f" c{i}: {' + '.join(f'x{j}' for j in row)} <= 1" for i, row in enumerate(rows)]
    names = [f" x{j}" for j in range(2000)]
    text = "\n".join(["Maximize", " obj: x0", "Subject To", *lines, "Binary", *names, "End", ""])
    graph = element_graph(as_arrays(tmp_path, text))
    assert graph.num_edges == 40_001


# --- labels --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels(tmp_path_factory) -> Labels:
    arrays = as_arrays(tmp_path_factory.mktemp("labels"), LP)
    rng = np.random.default_rng(0)
    binaries = np.flatnonzero(arrays.is_binary)
    return Labels(
        element_graph(arrays),
        binaries,
        rng.random((4, len(binaries))) < 0.5,
        np.sort(rng.uniform(1, 9, 4)),
        False,
        np.array([0.5, 1.5]),
        np.array([9.0, 8.0]),
        {"instance": "small.lp", "position": False},
    )


def test_labels_survive_the_disk(labels, tmp_path):
    labels.write(path := tmp_path / "labels" / "one.npz")
    back = read_labels(path)
    for ours, theirs in zip(labels.graph.tensors(), back.graph.tensors(), strict=True):
        assert torch.equal(ours, theirs)
    for name in ("binaries", "solutions", "objectives", "seconds", "incumbents"):
        np.testing.assert_array_equal(getattr(labels, name), getattr(back, name))
    assert back.facts["instance"] == "small.lp" and back.maximise is False
    assert label_files(path.parent) == [path]  # nothing half-written stays behind


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04 cut"])
def test_a_file_that_holds_no_labels_is_named(tmp_path, content):
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"bad\.npz"):
        read_labels(path)


def test_a_damaged_file_of_labels_is_named(labels, tmp_path):
    labels.write(path := tmp_path / "bad.npz")
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        inside = archive.getinfo("variable_features.npy").header_offset + 70
    for content in (whole[:-30], whole[:inside] + b"altered" + whole[inside + 7 :]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.npz is not a file of labels"):
            read_labels(path)


@settings(max_examples=30, deadline=None)
@given(
    solutions=st.integers(1, 6),
    temperature=st.floats(0.01, 2),
    logits=st.lists(st.floats(-4, 4), min_size=3, max_size=3),
    seed=st.integers(0, 99),
)
def test_one_target_stands_for_the_whole_pool(labels, solutions, temperature, logits, seed):
    rng = np.random.default_rng(seed)
    labels = replace(
        labels,
        solutions=rng.random((solutions, 3)) < 0.5,
        objectives=np.sort(rng.uniform(1, 9, solutions)),
    )
    p = torch.sigmoid(torch.tensor(logits, dtype=torch.float64))
    gaps = np.abs(labels.objectives - labels.objectives[0]) / abs(labels.objectives[0])
    weights = np.exp(-gaps / temperature) / np.exp(-gaps / temperature).sum()
    one_by_one = sum(
        w * binary_cross_entropy(p, torch.from_numpy(x.astype(float)), reduction="sum")
        for w, x in zip(weights, labels.solutions, strict=True)
    )
    target = torch.from_numpy(labels.target(temperature))
    assert binary_cross_entropy(p, target, reduction="sum") == pytest.approx(float(one_by_one))


@torch.no_grad()
def test_a_batch_counts_every_instance_alike(labels, tmp_path):
    small, large = tmp_path / "a.npz", tmp_path / "b.npz"
    labels.write(small)
    text = LP.replace("cap: b_x", "cap: q + r + b_x").replace("lonely\nEnd", "lonely\n q\n r\nEnd")
    arrays = as_arrays(tmp_path, text)
    binaries = np.flatnonzero(arrays.is_binary)
    replace(
        labels,
        graph=element_graph(arrays),
        binaries=binaries,
        solutions=np.ones((4, len(binaries)), bool),
    ).write(large)
    pools = Pools([small, large])
    torch.manual_seed(0)
    model = build_model("bgnn", task="element", size="small")
    task, both = BinaryPrediction(), pools.batch([0, 1])
    assert len(both) == 2 and both.binaries.max() < both.graph.num_variables
    total, metrics = task.step(model, both)
    parts = [task.step(model, pools.batch([i])) for i in (0, 1)]
    assert total == pytest.approx(sum(float(loss) for loss, _ in parts), rel=1e-5)
    assert 0 <= float(metrics["error_rate"]) <= 2
    one = parts[0][0]
    logits = model(pools[0].graph)[torch.from_numpy(pools[0].binaries)]
    target = torch.from_numpy(pools[0].target(pools.temperature)).float()
    assert one == pytest.approx(float(binary_cross_entropy(logits.sigmoid(), target)), rel=1e-5)


def test_without_splits_every_fifth_instance_validates(tmp_path):
    for k in range(10):
        (tmp_path / f"{k}.npz").touch()
    training, validation = split_files(tmp_path)
    assert [p.stem for p in validation] == ["4", "9"] and len(training) == 8
    with pytest.raises(InputError, match="l2b element collect"):
        split_files(tmp_path / "absent")


def test_ones_own_instances_choose_the_labels(tmp_path):
    for k in range(10):
        (tmp_path / f"{k}.npz").touch()
        (tmp_path / f"{k}.mps.gz").touch()
    training, validation = split_files(tmp_path, [tmp_path / "[0-4].mps.gz"])
    assert [p.name for p in training + validation] == [f"{k}.npz" for k in range(5)]
    (tmp_path / "3.npz").unlink()
    with pytest.raises(InputError, match=r"3\.mps\.gz .*same --instances"):
        split_files(tmp_path, [tmp_path])


# --- presets -------------------------------------------------------------------------------------


def test_the_papers_families_have_the_papers_regions():
    pas = trust_regions("pas", "indset", "dualattn")
    assert [r.counts(3000) for r in pas] == [(400, 400, 40)]
    assert trust_regions("pas", "indset", "bgnn")[0].counts(3000) == (300, 300, 40)
    assert trust_regions("pas", "cauctions", "bgnn")[0].counts(3000) == (40, 0, 40)
    apollo = trust_regions("apollo", "workload")
    assert [r.counts(1000) for r in apollo] == [
        (60, 600, 5),
        (50, 500, 5),
        (40, 400, 5),
        (30, 0, 5),
    ]
    assert sum(r.time for r in apollo) == pytest.approx(1)
    assert trust_regions("solver", "indset") == []


def test_other_instances_get_shares_of_their_binaries():
    (pas,) = trust_regions("pas", "setcover")
    apollo = trust_regions("apollo", None, own=pas)
    assert sum(r.k0 for r in apollo) == pytest.approx(pas.k0)
    own = TrustRegion(0.5, 0.1, 0.05)
    assert trust_regions("pas", "indset", own=own) == [own]
    with pytest.raises(InputError, match="solver, pas, apollo"):
        trust_regions("magic")


# --- reports -------------------------------------------------------------------------------------


def a_row(**changes) -> Row:
    usual = {
        "instance": "one", "method": "solver", "backbone": "", "training_seed": 0, "seed": 0,
        "status": "limit", "objective": 80.0, "best_known": 100.0, "maximise": True,
        "seconds": 10.0, "prediction_seconds": 0.0, "times": (2.0, 5.0), "objectives": (50.0, 80.0),
        "phases": "", "rejected": 0, "time_limit": 10.0, "solver": "scip", "model": "", "jobs": 1,
        "started": "", "machine": "m", "versions": "v", "command": "l2b", "error": "",
    }  # fmt: skip
    return Row(**{**usual, **changes})


def test_gaps_and_integrals_are_those_of_the_appendix():
    other = a_row(method="pas", backbone="bgnn", objective=125.0, times=(4.0,), objectives=(125.0,))
    searches = Searches([a_row(), other])
    assert searches.best_known == {"one": 125.0}  # a search may beat the reference
    gaps, integrals = searches.gaps, searches.integrals
    assert gaps[a_row().key] == pytest.approx(45 / 125)
    assert integrals[a_row().key] == pytest.approx(2 + 3 * 75 / 125 + 5 * 45 / 125)
    assert integrals[other.key] == pytest.approx(4)


def test_a_search_without_a_solution_has_the_whole_gap():
    searches = Searches([a_row(objective=None, times=(), objectives=())])
    assert searches.gaps[a_row().key] == 1 and searches.integrals[a_row().key] == 10
    assert "0 %" in Report(searches, {}).search_table().text()


def test_methods_are_compared_with_the_solver_and_backbones_with_each_other():
    def row(instance: int, method: str, backbone: str, seconds: float) -> Row:
        return a_row(
            instance=str(instance), method=method, backbone=backbone, objective=125.0,
            times=(seconds + instance / 10,), objectives=(125.0,),
        )  # fmt: skip

    rows = [row(i, "solver", "", 4.0) for i in range(6)]
    rows += [row(i, "pas", "bgnn", 2.0) for i in range(6)]
    rows += [row(i, "pas", "dualattn", 1.0) for i in range(6)]
    table = Report(Searches(rows), {}).difference_table()
    assert table is not None
    assert [cells[:2] for cells in table.rows] == [
        ("pas-bgnn", "scip"),
        ("pas-dualattn", "scip"),
        ("pas-dualattn", "pas-bgnn"),
    ]
    assert all(float(str(cells[2])) < 0.6 for cells in table.rows)
    # The smallest p of six pairs, 2/64, times the three comparisons.
    assert {cells[4] for cells in table.rows} == {f"{3 * 2 / 64:.3f}"}
    alone = Report(Searches([one for one in rows if one.method == "solver"]), {})
    assert alone.difference_table() is None


def test_methods_are_compared_on_what_all_of_them_have_searched():
    """A method that was only run on the easy instances used to look better for it."""
    easy = {"times": (1.0,), "objectives": (100.0,), "objective": 100.0}
    alone = [a_row(instance="easy", **easy), a_row(instance="hard"), a_row(instance="late")]
    pas = [
        a_row(instance="easy", method="pas", backbone="bgnn", training_seed=k, **easy)
        for k in range(3)
    ]
    one_more = a_row(instance="hard", method="pas", backbone="bgnn", training_seed=1)
    report = Report(Searches([*alone, *pas, one_more]), {})
    table = report.search_table()
    assert [cells[1] for cells in table.rows] == ["1", "3"]  # searches, a training each
    assert len({cells[2:6] for cells in table.rows}) == 1  # gaps and integrals
    assert "Left out of 7 searches: 3, whose instance and seed" in table.text()
    page = report.page().html()
    assert "over 1 instances" in page and "hard" in page  # every search is still listed
    assert "Left out" not in Report(Searches([alone[0], *pas]), {}).search_table().text()
    with pytest.raises(InputError, match="every method and model"):
        Searches([*alone[1:], *pas])


RESULTS = Path(__file__).parents[2] / "docs" / "results" / "element"
PUBLISHED = sorted(file.parent for file in RESULTS.glob("*/results.csv"))


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_published_searches_can_still_be_reported(folder):
    searches = read_report(folder).searches
    assert len(searches.compared) == len(searches.rows) == 8 * 13


def test_results_survive_a_writer_that_was_killed(tmp_path):
    path = tmp_path / "results.csv"
    rows = [a_row(seed=k, objective=None if k else 1.5) for k in range(2)]
    results = Results(path)
    for row in rows:
        results.append(row)
    assert read_results(path) == rows
    path.write_bytes(path.read_bytes() + b"two,solv")
    assert Results(path).rows == rows
    assert read_results(tmp_path) == rows


def test_results_of_an_older_version_lack_some_columns(tmp_path):
    path = tmp_path / "results.csv"
    Results(path).append(a_row(instance_hash="123", regions="1 2 3", reference_seconds=4.0))
    with path.open() as file:
        lines = [cells[: COLUMNS.index("error") + 1] for cells in csv.reader(file)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    assert read_results(path) == [a_row()]
    assert Results(path).rows == [a_row()]  # and goes on, with all columns
    assert path.read_text().startswith(",".join(COLUMNS))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("results.csv", b"\x89PNG\r\n\xff\xfe\x00"),
        ("results.csv", b"a,b\n1,2\n"),
        ("results.csv", (",".join(COLUMNS) + "\none,solver,,0,0,limit\n").encode()),
        ("accuracy.json", b"\xff\xfe"),
        ("accuracy.json", b'[{"backbone": "bgnn",'),
        ("accuracy.json", b'[{"backbone": "bgnn"}]'),
        ("accuracy.json", b"3"),
    ],
)
def test_what_cannot_be_reported_is_named(name, content, tmp_path, capsys):
    Results(tmp_path / "results.csv").append(a_row())
    (tmp_path / name).write_bytes(content)
    assert l2b("element", "report", str(tmp_path)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Error: {tmp_path / name} ") and len(said.splitlines()) == 1


# --- the whole way, on two families --------------------------------------------------------------


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("element")


def l2b(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


@pytest.fixture(scope="module", params=["indset", "cauctions"])
def trained(request, workplace) -> tuple[str, Path]:
    """Collect labels of six instances and train both backbones a little."""
    problem = request.param
    collect(
        problem, preset="tiny", count=6, time_limit=0.5, jobs=2,
        out=workplace / "labels", data=workplace / "data",
    )  # fmt: skip
    for backbone in ("dualattn", "bgnn"):
        train(
            problem, preset="tiny", backbone=backbone, epochs=3, labels=workplace / "labels",
            out=workplace / "runs" / f"element-{problem}-tiny-{backbone}-seed0",
        )  # fmt: skip
    return problem, workplace


def test_from_instances_to_a_report(trained):
    problem, place = trained
    arguments = {
        "preset": "tiny", "count": 1, "time_limit": 0.8, "reference_seconds": 1.0, "jobs": 2,
        "out": place / "results" / problem, "labels": place / "labels", "data": place / "data",
        "runs": place / "runs",
    }  # fmt: skip
    folder, rows = evaluate(problem, **arguments)
    assert len(rows) == 5  # the solver alone, and two methods with two backbones
    labels = {"scip", "pas-bgnn", "pas-dualattn", "apollo-bgnn", "apollo-dualattn"}
    assert {row.label for row in rows} == labels
    for row in rows:
        assert row.error == "" and row.rejected == 0
        assert row.objective is not None and row.objectives[-1] == row.objective
        assert list(row.times) == sorted(row.times) and row.times[-1] <= row.time_limit
        assert (row.prediction_seconds > 0) == (row.method != "solver")
        assert not row.prediction_seconds or row.times[0] >= row.prediction_seconds
    again = evaluate(problem, **arguments)[1]
    assert again == rows  # nothing was run twice
    with pytest.raises(InputError, match=r"time limit 0\.8, not 3\.0: choose another --out"):
        evaluate(problem, **{**arguments, "time_limit": 3.0})

    report = read_report(folder)
    assert len(report.accuracies) == 2
    page = report.write(folder / FILE).read_text()
    assert page.count("<svg") == 0 and page.count("data:image/svg+xml") == 3
    assert "apollo-dualattn" in page and "http" not in page.split("</style>")[1]
    best = report.searches.best_known
    assert all(0 <= primal_gap(row.objective, best[row.instance]) < 1 for row in rows)


def test_evaluations_are_reported_again_side_by_side(tmp_path, capsys):
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        results = Results(folder / "results.csv")
        for method, backbone in (("solver", ""), ("pas", "bgnn")):
            results.append(a_row(method=method, backbone=backbone))
    picture = tmp_path / "gaps.svg"
    assert l2b("element", "report", *map(str, folders), "--picture", str(picture)) == 0
    assert capsys.readouterr().out.count("Solutions after 10 s") == 3
    assert all((folder / FILE).is_file() for folder in folders)
    assert picture.read_text().count("<!-- seconds -->") == 3  # a panel each


def test_collecting_again_collects_nothing(trained):
    problem, place = trained
    folder = place / "labels" / problem / "tiny" / "train"
    before = {path: path.stat().st_mtime_ns for path in label_files(folder)}
    assert len(before) == 6
    collect(
        problem, preset="tiny", count=6, time_limit=0.5, out=place / "labels", data=place / "data"
    )
    assert {path: path.stat().st_mtime_ns for path in label_files(folder)} == before


def test_labels_are_feasible_solutions_with_their_values(trained):
    problem, place = trained
    for path in label_files(place / "labels" / problem / "tiny" / "train")[:3]:
        labels = read_labels(path)
        arrays = read_arrays(place / "data" / problem / "tiny" / "train" / labels.facts["instance"])
        assert labels.maximise and len(labels.solutions) > 1
        for x, value in zip(labels.solutions, labels.objectives, strict=True):
            point = np.zeros(arrays.num_variables)
            point[labels.binaries] = x
            assert arrays.is_feasible(point) and arrays.objective_of(point) == pytest.approx(value)
        assert list(labels.objectives) == sorted(labels.objectives, reverse=True)
        assert labels.incumbents[-1] == labels.objectives[0]
        assert all(a <= b for a, b in itertools.pairwise(labels.seconds))


def test_a_prediction_is_the_same_from_a_file_and_from_labels(trained):
    problem, place = trained
    predictor = Predictor(place / "runs" / f"element-{problem}-tiny-dualattn-seed0")
    labels = read_labels(label_files(place / "labels" / problem / "tiny" / "train")[0])
    arrays = read_arrays(place / "data" / problem / "tiny" / "train" / labels.facts["instance"])
    p = predictor(arrays)
    assert p.shape == (arrays.num_variables,) and ((p > 0) & (p < 1)).all()
    np.testing.assert_allclose(
        p[labels.binaries], predictor.on_graph(labels.graph, labels.binaries), atol=1e-6
    )
    accuracy = measure_accuracy(predictor, [labels])
    truth, guess = labels.best, p[labels.binaries] > 0.5
    assert accuracy.confusion.error_rate == pytest.approx(np.mean(truth != guess))
    assert accuracy.mse == pytest.approx(np.square(p[labels.binaries] - truth).mean(), rel=1e-4)
    assert sum(accuracy.zeros) + sum(accuracy.ones) == len(truth)
    assert accuracy.majority.confusion.error_rate == pytest.approx(
        min(truth.mean(), 1 - truth.mean())
    )


def test_searching_one_file_from_the_command_line(trained, capsys):
    problem, place = trained
    file = place / "data" / problem / "tiny" / "test" / "instance_0001.lp"
    run, out = place / "runs" / f"element-{problem}-tiny-bgnn-seed0", place / f"{problem}.sol"
    code = l2b(
        "element", "search", str(file), "--model", str(run), "--time-limit", "2", "--out", str(out),
        "--k0", "0.2", "--k1", "3", "--delta", "0.1",
    )  # fmt: skip
    shown = capsys.readouterr()
    assert code == 0 and shown.out.startswith("objective ")
    assert "region 1" in shown.err and " s  " in shown.err  # incumbents as they were found
    arrays = read_arrays(file)
    first, *lines = out.read_text().splitlines()
    x = np.zeros(arrays.num_variables)
    for line in lines:
        name, value = line.split()
        x[arrays.names.index(name)] = float(value)
    assert arrays.is_feasible(x)
    assert arrays.objective_of(x) == pytest.approx(float(first.split()[-1]))


@pytest.mark.parametrize("trained", ["indset"], indirect=True)
def test_own_instances_go_the_same_way(trained):
    problem, place = trained
    own = place / f"own-{problem}"
    files = sorted((place / "data" / problem / "tiny" / "train").glob("*.lp"))[:5]
    collected = collect(instances=files, preset="tiny", time_limit=0.3, jobs=2, out=own)
    assert len(collected) == 5
    folder, _ = train(preset="tiny", backbone="bgnn", epochs=1, labels=own, out=own / "run")
    assert Predictor(folder).provenance["problem"] == ""


# --- going on, with the same only ----------------------------------------------------------------


def untrained(path: Path, seed: int = 0, **provenance) -> Path:
    model = build_model("bgnn", task="element", size="small")
    return export_policy(model, path, provenance={"seed": seed, **provenance})


@pytest.fixture
def own(tmp_path) -> tuple[Path, dict]:
    """A file of a user, and how it is evaluated in a second or two."""
    file = tmp_path / "mine.lp"
    file.write_text(LP)
    arguments = {
        "instances": [file], "preset": "tiny", "methods": ["solver"], "time_limit": 2.0,
        "reference_seconds": 1.0, "out": tmp_path / "results",
    }  # fmt: skip
    return file, arguments


def test_searches_of_another_instance_or_with_other_settings_are_not_gone_on_with(own, tmp_path):
    """Rows of two instances stood under one name, and old limits under new ones."""
    file, arguments = own
    (row,) = evaluate(**arguments)[1]
    other = tmp_path / "other.lp"
    other.write_text(LP)
    for changes, complaint in (
        ({"time_limit": 3.0}, r"time limit 2\.0, not 3\.0"),
        ({"solver": "highs"}, "solver scip, not highs"),
        ({"reference_seconds": 5.0}, r"reference seconds 1\.0, not 5\.0"),
        ({"instances": [other], "time_limit": 3.0}, r"time limit 2\.0, not 3\.0"),
    ):
        with pytest.raises(InputError, match=rf"results\.csv holds .* {complaint}: choose another"):
            evaluate(**{**arguments, **changes})
    file.write_text(LP.replace("3 b_x", "4 b_x"))
    with pytest.raises(InputError, match=f"of mine by scip with instance hash {row.instance_hash}"):
        evaluate(**arguments, seeds=2)
    assert read_results(tmp_path / "results") == [row]
    assert not (tmp_path / "results" / "reference" / "other.npz").exists()


def test_other_trust_regions_are_other_searches(own, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = {**own[1], "methods": ["pas"], "models": [untrained(tmp_path / "m.pt")]}
    del arguments["out"]
    folder, (row,) = evaluate(**arguments, region=TrustRegion(2, 0.5, 1))
    assert folder == Path("results/element-own")  # results/own is l2b evaluate's
    assert row.error == "" and row.regions == "2 0.5 1"
    with pytest.raises(InputError, match=r"pas-bgnn with regions 2 0\.5 1, not 1 0\.5 1"):
        evaluate(**arguments, region=TrustRegion(1, 0.5, 1))
    with pytest.raises(InputError, match=r"regions 2 0\.5 1, not 0\.2 0\.05 0\.02"):
        evaluate(**arguments)


def test_labels_of_another_instance_or_with_other_settings_are_not_gone_on_with(own, tmp_path):
    file, _ = own
    arguments = {"instances": [file], "preset": "tiny", "out": tmp_path / "labels"}
    (path,) = collect(**arguments)
    whole = read_labels(path)
    for changes, complaint in (
        ({"time_limit": 2}, r"time limit 1\.0, not 2\.0"),
        ({"position": True}, "position False, not True"),
        ({"pool_size": 3}, "pool size 10, not 3"),
        ({"seed": 4}, "seed 0, not 4"),
    ):
        with pytest.raises(InputError, match=rf"mine\.npz holds labels with {complaint}: choose"):
            collect(**{**arguments, **changes})
    replace(whole, facts={**whole.facts, "solver": "highs"}).write(path)
    with pytest.raises(InputError, match="solver highs, not scip"):
        collect(**arguments)
    whole.write(path)
    file.write_text(LP.replace("3 b_x", "4 b_x"))
    with pytest.raises(InputError, match="instance hash"):
        collect(**arguments)
    # An older version wrote less, and numbers in another way.
    replace(whole, facts={"position": False, "time_limit": 1}).write(path)
    assert collect(**arguments) == [path]


def test_numbers_of_variables_are_shared_out_among_apollos_rounds(own, tmp_path):
    """An eighth of 4 was read as one half of the binaries."""
    file, arguments = own
    names = [f"x{k}" for k in range(40)]
    weights = [f"{3 + k % 7} {name}" for k, name in enumerate(names)]
    file.write_text(
        f"Maximize\n obj: {' + '.join(names)}\nSubject To\n c: {' + '.join(weights)} <= 70\n"
        f"Binary\n {' '.join(names)}\nEnd\n"
    )
    (row,) = evaluate(
        **{**arguments, "methods": ["apollo"], "models": [untrained(tmp_path / "m.pt")]},
        region=TrustRegion(16, 4, 8),
    )[1]
    held = re.findall(r"region \d \w+ \S+ s \(held (\d+)\+(\d+), delta (\d+)", row.phases)
    assert [" ".join(numbers) for numbers in held] == ["8 2 4", "4 1 2", "2 0 1", "2 0 1"]


def test_the_accuracy_of_a_model_that_knows_positions_is_measured_with_positions(tmp_path):
    places = {"labels": tmp_path / "labels", "data": tmp_path / "data", "out": tmp_path / "results"}
    arguments = {
        "preset": "tiny", "count": 1, "methods": ["solver"], "time_limit": 0.5,
        "reference_seconds": 0.5, **places,
    }  # fmt: skip
    model = untrained(tmp_path / "with.pt", position=True)
    evaluate("indset", models=[model], **arguments)
    (path,) = label_files(tmp_path / "labels" / "indset" / "tiny" / "test")
    assert read_labels(path).graph.variable_features[:, 6:].any()
    without = untrained(tmp_path / "without.pt", seed=1)
    with pytest.raises(InputError, match="with --position and some without: evaluate them apart"):
        evaluate("indset", models=[model, without], **arguments)


# --- mistakes ------------------------------------------------------------------------------------


def test_mistakes_end_in_one_sentence(tmp_path, capsys):
    lp = tmp_path / "x.lp"
    lp.write_text(LP)
    state = export_policy(build_model("bgnn", size="small"), tmp_path / "state.pt")
    for arguments, complaint in (
        (["search", str(lp)], "needs a model"),
        (["search", str(lp), "--model", str(state)], "model of the state task"),
        (["search", str(tmp_path / "no.lp"), "--method", "solver"], "does not exist"),
        (["search", str(lp), "--method", "solver", "--k0", "1"], "belong together"),
        (["search", str(lp), "--method", "solver", "--out", str(tmp_path)], "is a folder"),
        (["train", "--problem", "indset", "--labels", str(tmp_path)], "run l2b element collect"),
        (["collect"], "--problem"),
        (["evaluate", "--problem", "indset", "--runs", str(tmp_path)], "no trained model"),
    ):
        assert l2b("element", *arguments) == 2
        error = capsys.readouterr().err
        assert complaint in error and "Traceback" not in error


def test_an_infeasible_instance_is_no_mistake_of_the_search(tmp_path):
    path = tmp_path / "none.lp"
    path.write_text("Minimize\n obj: x\nSubject To\n c: x >= 2\nBinary\n x\nEnd\n")
    with pytest.raises(WorkError, match="infeasible"):
        search_file(path, method="solver", time_limit=5)


def test_instances_that_teach_nothing_are_named(tmp_path, capsys):
    """Also to those who asked for quiet: what is left out is no progress."""
    bad = tmp_path / "none.lp"
    bad.write_text("Minimize\n obj: x\nSubject To\n c: x >= 2\nBinary\n x\nEnd\n")
    with pytest.raises(
        WorkError, match=r"no instance gave a single .* the first .*: is infeasible"
    ):
        collect(instances=[bad], preset="tiny", out=tmp_path / "labels")
    (tmp_path / "good.lp").write_text(LP)
    capsys.readouterr()
    collecting = ("--instances", str(tmp_path), "--preset", "tiny", "--out", str(tmp_path / "both"))
    assert l2b("element", "collect", *collecting, "-q") == 0
    said = capsys.readouterr()
    assert said.out.startswith("1 instances with labels")
    assert "none.lp: is infeasible" in said.err and len(said.err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["cauctions", "indset"])
def test_the_tiny_preset_from_the_command_line(problem, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ("--problem", problem, "--preset", "tiny")
    assert l2b("element", "collect", *common, "--jobs", "2") == 0
    assert l2b("element", "train", *common) == 0
    assert l2b("element", "train", *common, "--model", "bgnn") == 0
    assert l2b("element", "evaluate", *common, "--jobs", "2") == 0
    assert "Primal integral" in capsys.readouterr().out
    folder = tmp_path / "results" / f"element-{problem}-tiny"
    with (folder / "results.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5 * PRESETS["tiny"].counts["test"]
    assert len(json.loads((folder / "accuracy.json").read_text())) == 2


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["highs"])
def test_another_solver_goes_the_whole_way(solver, tmp_path):
    places = {"out": tmp_path / "labels", "data": tmp_path / "data"}
    collect("indset", preset="tiny", count=4, time_limit=1, solver=solver, jobs=2, **places)
    train(
        "indset", preset="tiny", backbone="bgnn", epochs=2, labels=tmp_path / "labels",
        out=tmp_path / "runs" / "element-indset-tiny-bgnn-seed0",
    )  # fmt: skip
    _, rows = evaluate(
        "indset", preset="tiny", count=1, time_limit=1, reference_seconds=1, solver=solver, jobs=2,
        out=tmp_path / "results", labels=tmp_path / "labels", data=tmp_path / "data",
        runs=tmp_path / "runs",
    )  # fmt: skip
    assert {row.label for row in rows} == {"highs", "pas-bgnn", "apollo-bgnn"}
    assert all(row.objective is not None for row in rows)
