"""How long an instance file takes to become arrays and features, and what others take to read it.

    python benchmarks/arrays.py [--repeats 3]

The instances of the element task at the paper's sizes, and a random one with a million non-zeros.
Medians in seconds of processor time, all contenders in turn. `getConsVars` is PySCIPOpt's way, row
by row: done for a tenth of the rows and multiplied by ten, reading the file left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import highspy
import numpy as np
from scipy.sparse import csr_array

from instances import FAMILIES
from instances.milp import Milp, binary_program
from instances.writing import write
from pipelines.element_level.features import element_graph
from pipelines.element_level.presets import POSITIONED, element_preset
from solver_plugins.arrays import read_arrays
from solver_plugins.reading import read_model

ROWS, COLUMNS, NONZEROS_A_ROW = 60_000, 64_000, 17


def seconds(work: Callable[[], Any]) -> float:
    """Return what one call takes of the processor."""
    started = time.process_time()
    work()
    return time.process_time() - started


def instances() -> Iterator[tuple[str, Milp]]:
    """Yield the families of the element task, and a random covering problem."""
    sizes = element_preset("paper").sizes
    for name in ("workload", "indset", "cauctions", "placement"):
        preset, _ = sizes.get(name, ("paper", {}))
        yield name, FAMILIES[name].instance(preset, "test", 0, 1)
    yield "random", random_cover(np.random.default_rng(0))


def random_cover(rng: np.random.Generator) -> Milp:
    """Make a covering problem with a million non-zeros."""
    step = rng.integers(1, COLUMNS // NONZEROS_A_ROW, (ROWS, NONZEROS_A_ROW))
    columns = np.cumsum(step, axis=1)  # distinct within a row
    starts = np.arange(ROWS + 1) * NONZEROS_A_ROW
    values = rng.integers(1, 10, columns.size).astype(np.float64)
    return binary_program(
        "random",
        maximise=False,
        objective=rng.integers(1, 100, COLUMNS).astype(np.float64),
        matrix=csr_array((values, columns.ravel(), starts), shape=(ROWS, COLUMNS)),
        left=10.0,
        right=np.inf,
        variable_names=[f"x{j}" for j in range(COLUMNS)],
        row_names=[f"c{i}" for i in range(ROWS)],
    )


def read_with_highs(path: Path) -> None:
    """Read a file into HiGHS, and no further."""
    highs = highspy.Highs()
    highs.silent()
    highs.readModel(str(path))


def main() -> None:
    """Print one row an instance."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| instance | rows x columns, non-zeros | arrays | features | HiGHS | getConsVars |")
    print("| --- | --- | --: | --: | --: | --: |")
    with tempfile.TemporaryDirectory() as folder:
        for name, milp in instances():
            path = Path(folder) / "instance.lp"
            write(milp, path)
            arrays = read_arrays(path)
            turns = []
            for _ in range(repeats):
                model = read_model(path)  # anew: PySCIPOpt keeps the variables it has once wrapped
                rows = model.getConss()[::10]
                contenders: tuple[Callable[[], Any], ...] = (
                    lambda path=path: read_arrays(path),
                    lambda arrays=arrays, name=name: element_graph(arrays, name in POSITIONED),
                    lambda path=path: read_with_highs(path),
                    lambda model=model, rows=rows: [model.getConsVars(row) for row in rows],
                )
                turns.append([seconds(work) for work in contenders])
            ours, features, highs, by_row = (statistics.median(t) for t in zip(*turns, strict=True))
            m, n = milp.matrix.shape
            print(
                f"| {name} | {m:,} x {n:,}, {milp.matrix.nnz:,} | {ours:.2f} | {features:.2f} "
                f"| {highs:.2f} | {10 * by_row:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
