import gzip
import time
from pathlib import Path

import highspy
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learn2branch.errors import InputError
from solver_plugins.arrays import SENSES, MilpArrays, arrays_of, read_arrays
from solver_plugins.reading import read_model

LP = """Maximize
 obj: 3 x + 2 y - z + 4 w + 7.5
Subject To
 upper: 2 x + 3 y <= 12
 lower: x - z >= -5
 equal: y + z + w = 4
 empty: 0 x >= -1
Bounds
 x <= 4
 -2 <= z <= 9
 w free
Binary
 y
General
 x
End
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def read_with_highs(path: Path) -> tuple[dict, dict, np.ndarray]:
    """Rows, as name-keyed facts, of another reader: columns, column facts, and dense matrix."""
    highs = highspy.Highs()
    highs.silent()
    assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
    lp = highs.getLp()
    dense = np.zeros((lp.num_row_, lp.num_col_))
    start, index, value = lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_
    for column in range(lp.num_col_):
        for k in range(start[column], start[column + 1]):
            dense[index[k], column] = value[k]
    continuous = highspy.HighsVarType.kContinuous
    integer = [kind != continuous for kind in lp.integrality_] or [False] * lp.num_col_
    columns = {
        name: (lp.col_cost_[j], lp.col_lower_[j], lp.col_upper_[j], integer[j])
        for j, name in enumerate(lp.col_names_)
    }
    order = {name: j for j, name in enumerate(lp.col_names_)}
    return columns, order, np.column_stack([lp.row_lower_, lp.row_upper_, dense])


def assert_same(arrays: MilpArrays, path: Path) -> None:
    columns, order, rows = read_with_highs(path)
    assert set(arrays.names) == set(columns)
    for j, name in enumerate(arrays.names):
        ours = (
            arrays.objective[j],
            arrays.lower[j],
            arrays.upper[j],
            bool(arrays.is_integer[j]),
        )
        assert ours == pytest.approx(columns[name])
    ours = np.column_stack([arrays.lhs, arrays.rhs, arrays.matrix.toarray()])
    theirs = rows[:, [0, 1, *(2 + order[name] for name in arrays.names)]]
    ours, theirs = ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)]
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_every_part_of_a_file_is_read(tmp_path):
    arrays = read_arrays(write(tmp_path, "all.lp", LP))
    at = {name: j for j, name in enumerate(arrays.names)}
    x, y, z, w = (at[name] for name in "xyzw")
    assert arrays.maximise and arrays.offset == 7.5
    assert arrays.objective[[x, y, z, w]].tolist() == [3, 2, -1, 4]
    assert arrays.lower[[x, y, z, w]].tolist() == [0, 0, -2, -np.inf]
    assert arrays.upper[[x, y, z, w]].tolist() == [4, 1, 9, np.inf]
    assert arrays.is_integer[[x, y, z, w]].tolist() == [True, True, False, False]
    assert arrays.is_binary[[x, y, z, w]].tolist() == [False, True, False, False]
    assert arrays.matrix[:, [x, y, z, w]].toarray().tolist() == [
        [2, 3, 0, 0],
        [1, 0, -1, 0],
        [0, 1, 1, 1],
        [0, 0, 0, 0],
    ]
    assert [SENSES[s] for s in arrays.senses] == ["<=", ">=", "==", ">="]
    assert arrays.sides.tolist() == [12, -5, 4, -1]
    assert arrays.matrix.nnz == 7  # the written zero is none


def test_the_order_is_that_of_the_model(tmp_path):
    model = read_model(write(tmp_path, "order.lp", LP))
    assert arrays_of(model).names == tuple(v.name for v in model.getVars())


def test_a_solved_model_still_gives_its_original_problem(tmp_path):
    path = write(tmp_path, "solved.lp", LP.replace("w free", "w <= 3"))
    model = read_model(path)
    before = arrays_of(model)
    model.optimize()
    after = arrays_of(model)
    assert (before.matrix != after.matrix).nnz == 0
    assert before.names == after.names
    np.testing.assert_array_equal(before.objective, after.objective)


@pytest.mark.parametrize("suffix", [".lp", ".mps", ".cip", ".lp.gz"])
def test_formats_agree(tmp_path, suffix):
    source = write(tmp_path, "source.lp", LP.replace(" + 7.5", "").replace("Max", "Min"))
    expected = read_arrays(source)
    path = tmp_path / f"copy{suffix}"
    if suffix == ".lp.gz":
        path.write_bytes(gzip.compress(source.read_bytes()))
    else:
        read_model(source).writeProblem(str(path), verbose=False)
    arrays = read_arrays(path)
    columns = [arrays.names.index(name) for name in expected.names]
    assert (arrays.matrix[:, columns] != expected.matrix).nnz == 0
    np.testing.assert_array_equal(arrays.objective[columns], expected.objective)
    np.testing.assert_array_equal(arrays.lower[columns], expected.lower)
    np.testing.assert_array_equal(arrays.rhs, expected.rhs)


CIP = """STATISTICS
  Problem name     : kinds
OBJECTIVE
  Sense            : minimize
VARIABLES
  [binary] <a>: obj=1, original bounds=[0,1]
  [binary] <b>: obj=2, original bounds=[0,1]
  [binary] <c>: obj=-1, original bounds=[0,1]
  [continuous] <d>: obj=0, original bounds=[0,7]
CONSTRAINTS
  [setppc] <packing>:  +<a>[B] +<b>[B] +<c>[B] <= 1;
  [logicor] <either>: logicor(<a>[B],<~b>[B]);
  [knapsack] <weights>: +3<a>[B] +2<b>[B] +4<c>[B] <= 5;
  [varbound] <bound>:  <d>[C] -7<a>[B] <= 0;
  [linear] <flipped>: +2<~c>[B] +<d>[C] +<d>[C] >= 1;
  [linear] <range>: -3 <= <a>[B] -2<d>[C] <= 8;
END
"""


def test_special_constraints_and_negated_variables_are_rows_too(tmp_path):
    arrays = read_arrays(write(tmp_path, "kinds.cip", CIP))
    columns = [arrays.names.index(name) for name in "abcd"]
    rows = np.column_stack([arrays.lhs, arrays.rhs, arrays.matrix[:, columns].toarray()])
    inf = np.inf
    assert rows.tolist() == [
        [-inf, 1, 1, 1, 1, 0],
        [0, inf, 1, -1, 0, 0],  # a + (1 - b) >= 1
        [-inf, 5, 3, 2, 4, 0],
        [-inf, 0, -7, 0, 0, 1],
        [-1, inf, 0, 0, -2, 2],  # 2 (1 - c) + 2 d >= 1
        [-3, 8, 1, 0, 0, -2],
    ]
    assert SENSES[arrays.senses[-1]] == "<=" and arrays.sides[-1] == 8


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("broken.lp", "Minimize\n obj: x +* y\nEnd\n", "cannot be read"),
        ("unknown.xyz", "nothing", "cannot be read"),
        (
            "quadratic.lp",
            "Minimize\n obj: x\nSubject To\n q: [ x ^2 ] <= 4\nEnd\n",
            "constraint q is of kind 'nonlinear'",
        ),
    ],
)
def test_what_is_not_a_linear_program_is_the_users_mistake(tmp_path, name, text, complaint):
    path = write(tmp_path, name, text)
    with pytest.raises(InputError, match=complaint):
        read_arrays(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.lp does not exist"):
        read_arrays(tmp_path / "absent.lp")


def test_an_instance_without_constraints(tmp_path):
    arrays = read_arrays(write(tmp_path, "free.lp", "Minimize\n obj: x + y\nBinary\n x\n y\nEnd\n"))
    assert arrays.matrix.shape == (0, 2) and arrays.violation(np.zeros(2)) == 0


coefficient = st.integers(-9, 9).map(lambda k: k / 2)


@st.composite
def small_programs(draw) -> str:
    n, m = draw(st.integers(1, 6)), draw(st.integers(1, 5))

    def terms(row):
        return " ".join(f"{'-' if a < 0 else '+'} {abs(a)} x{j}" for j, a in enumerate(row))

    rows = [draw(st.lists(coefficient, min_size=n, max_size=n)) for _ in range(m)]
    rows = [row for row in rows if any(row)] or [[1.0] * n]
    senses = [draw(st.sampled_from(["<=", ">=", "="])) for _ in rows]
    sides = [draw(coefficient) for _ in rows]
    kinds = draw(st.lists(st.sampled_from("BGC"), min_size=n, max_size=n))
    objective = [1.0, *draw(st.lists(coefficient, min_size=n, max_size=n))][:n]
    lines = ["Minimize", f" obj: {terms(objective)}", "Subject To"]
    lines += [
        f" c{i}: {terms(row)} {sense} {side}"
        for i, (row, sense, side) in enumerate(zip(rows, senses, sides, strict=True))
    ]
    lines += ["Bounds", *(f" x{j} <= {3 + j}" for j in range(n) if kinds[j] != "B")]
    for section, kind in (("Binary", "B"), ("General", "G")):
        lines += [section, *(f" x{j}" for j in range(n) if kinds[j] == kind)]
    return "\n".join([*lines, "End", ""])


@settings(max_examples=40, deadline=None)
@given(text=small_programs())
def test_another_reader_agrees(text, tmp_path_factory):
    path = write(tmp_path_factory.mktemp("lp"), "random.lp", text)
    assert_same(read_arrays(path), path)


def test_violations_are_found(tmp_path):
    arrays = read_arrays(write(tmp_path, "all.lp", LP))
    at = {name: j for j, name in enumerate(arrays.names)}

    def point(**values) -> np.ndarray:
        x = np.zeros(4)
        for name, value in values.items():
            x[at[name]] = value
        return x

    good = point(x=3, y=1, z=1, w=2)
    assert arrays.violation(good) == 0 and arrays.is_feasible(good)
    assert arrays.objective_of(good) == 3 * 3 + 2 - 1 + 4 * 2 + 7.5
    assert arrays.is_feasible(good + 1e-8)
    for bad in (
        point(x=4, y=2, z=1, w=1),  # a bound, and a row
        point(x=2.5, y=1, z=1, w=2),  # not integer
        point(x=3, y=1, z=1, w=1),  # equality
        point(x=0, y=1, z=5.5, w=-2.5),  # lower side of `lower`
        good * np.nan,
        good[:3],
    ):
        assert not arrays.is_feasible(bad)


@pytest.mark.slow
def test_a_million_non_zeros_take_seconds(tmp_path):
    rng = np.random.default_rng(0)
    n, m, length = 64_000, 60_000, 17
    lines = ["Minimize", " obj:", *(f" + {rng.integers(1, 100)} x{j}" for j in range(n))]
    lines.append("Subject To")
    for i in range(m):
        members = rng.choice(n, length, replace=False)
        terms = (f"{a:+.3f} x{j}" for a, j in zip(rng.uniform(1, 9, length), members, strict=True))
        lines.append(f" c{i}: {' '.join(terms)} >= {rng.integers(1, 9)}")
    lines += ["Binary", *(f" x{j}" for j in range(0, n, 2)), "End", ""]
    path = write(tmp_path, "large.lp", "\n".join(lines))
    started = time.perf_counter()
    arrays = read_arrays(path)
    seconds = time.perf_counter() - started
    assert arrays.matrix.shape == (m, n) and arrays.matrix.nnz == m * length
    assert arrays.is_binary.sum() == n // 2
    assert seconds < 20  # about 2 on an idle core
