"""What measuring a solve costs it: the same trees with and without the event handler of `solve`.

    python benchmarks/watching.py

CPU time of the process, with and without in turn, the least of each (others can only add to it).
Set cover has nodes as evaluations have them; the knapsack has tiny LPs and thus the worst case.
"""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path

from instances import FAMILIES
from instances.writing import write
from solver_plugins.parameters import apply_protocol
from solver_plugins.reading import read_model
from solver_plugins.solve import _Watch, prefer_rule

REPEATS = 5


def cpu_seconds(file: Path, rule: str, nodes: int, watched: bool) -> tuple[float, int]:
    """Solve and return the CPU time and the number of nodes."""
    model = read_model(file)
    apply_protocol(model, "gasse", 0, 3600)
    model.setParam("limits/totalnodes", nodes)
    prefer_rule(model, rule)
    if watched:
        model.includeEventhdlr(_Watch(), "watch", "")
    started = time.process_time()
    model.optimize()
    return time.process_time() - started, model.getNTotalNodes()


def write_knapsack(path: Path) -> None:
    """Write a problem with many nodes and tiny LPs."""
    rng = random.Random(2)
    names = [f"x{j}" for j in range(60)]
    rows = [[rng.randint(10, 60) for _ in names] for _ in range(10)]
    sums = [" + ".join(f"{w} {x}" for w, x in zip(row, names, strict=True)) for row in rows]
    lines = ["Maximize", " + ".join(f"{rng.randint(20, 50)} {x}" for x in names), "Subject To"]
    lines += [f"{total} <= {sum(row) / 3}" for total, row in zip(sums, rows, strict=True)]
    path.write_text("\n".join([*lines, "Binary", *names, "End"]))


def main() -> None:
    """Print a line a problem."""
    with tempfile.TemporaryDirectory() as folder:
        knapsack, cover = Path(folder) / "knapsack.lp", Path(folder) / "cover.lp"
        write_knapsack(knapsack)
        write(FAMILIES["setcover"].instance("paper", "test", 0, 1), cover)
        for name, file, nodes in (("set cover", cover, 200), ("knapsack", knapsack, 2000)):
            plain, watched = [], []
            for _ in range(REPEATS):
                seconds, count = cpu_seconds(file, "mostinf", nodes, watched=False)
                plain.append(seconds)
                seconds, same = cpu_seconds(file, "mostinf", nodes, watched=True)
                watched.append(seconds)
                assert same == count  # watching changes nothing
            print(
                f"{name}: {count} nodes of {1000 * min(plain) / count:.2f} ms, watched "
                f"{min(watched) / min(plain):.3f} times that"
            )


if __name__ == "__main__":
    main()
