from pathlib import Path

import numpy as np
import pyscipopt
import pytest

from instances import FAMILIES, writing


@pytest.mark.parametrize("name", FAMILIES)
def test_both_routes_into_scip_write_the_same_bytes(name: str, tmp_path: Path) -> None:
    library = writing._scip_library()
    assert library is not None, "the fast route is not there to be tested"
    milp = FAMILIES[name].instance("tiny", "test", 0, 1)
    writing._fill_fast(milp, library).writeProblem(tmp_path / "fast.lp", verbose=False)
    writing._fill_plainly(milp).writeProblem(tmp_path / "plain.lp", verbose=False)
    assert (tmp_path / "fast.lp").read_bytes() == (tmp_path / "plain.lp").read_bytes()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("file_format", writing.FORMATS)
def test_what_is_written_reads_back_as_it_was(name: str, file_format: str, tmp_path: Path) -> None:
    milp = FAMILIES[name].instance("tiny", "test", 0, 2)
    path = tmp_path / f"instance.{file_format}"
    writing.write(milp, path)
    model = pyscipopt.Model()
    model.hideOutput()
    model.readProblem(str(path))
    variables = {variable.name: variable for variable in model.getVars()}
    assert set(variables) == set(milp.variable_names)
    ordered = [variables[variable_name] for variable_name in milp.variable_names]
    objective = [variable.getObj() for variable in ordered]
    # An .mps file has no sense of its own in every dialect: SCIP may write max f as min -f.
    sign = 1 if (model.getObjectiveSense() == "maximize") == milp.maximise else -1
    assert np.allclose(np.array(objective) * sign, milp.objective, rtol=1e-12)
    assert [variable.vtype() == "BINARY" for variable in ordered] == milp.binary.tolist()
    rows = {row.name: row for row in model.getConss()}
    position = {variable_name: j for j, variable_name in enumerate(milp.variable_names)}
    for i, row_name in enumerate(milp.row_names):
        dense = np.zeros(len(ordered))
        for variable_name, value in model.getValsLinear(rows[row_name]).items():
            dense[position[variable_name]] = value
        assert np.allclose(dense, milp.matrix[[i]].toarray().ravel(), rtol=1e-12)
        assert np.isclose(max(model.getLhs(rows[row_name]), -1e20), max(milp.left[i], -1e20))
        assert np.isclose(min(model.getRhs(rows[row_name]), 1e20), min(milp.right[i], 1e20))


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch) -> None:
    milp = FAMILIES["setcover"].instance("tiny", "test", 0, 1)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(writing.os, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        writing.write(milp, tmp_path / "instance.lp")
    assert list(tmp_path.iterdir()) == []


def test_files_do_not_say_when_they_were_written(tmp_path: Path) -> None:
    milp = FAMILIES["indset"].instance("tiny", "test", 0, 1)
    for name in ("a.mps.gz", "b.mps.gz"):
        writing.write(milp, tmp_path / name)
    assert (tmp_path / "a.mps.gz").read_bytes() == (tmp_path / "b.mps.gz").read_bytes()
