"""How long one instance of each family takes: drawn, put into SCIP, and written as .lp.

    python benchmarks/generate.py [--preset paper] [--repeats 7] [--gyozas]

Medians in milliseconds of processor time, in one process, so that other work on the machine counts
less. `--gyozas` adds what gyozas takes to make the same sizes as SCIP models, in turn with ours.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from instances import FAMILIES
from instances.writing import scip_model, write


def milliseconds(work: Callable[[], Any]) -> float:
    """Return what one call takes of the processor."""
    started = time.process_time()
    work()
    return 1000 * (time.process_time() - started)


def gyozas_generators() -> dict[str, Any]:
    """Return gyozas' generators at the paper's sizes."""
    from gyozas import instances as g

    return {
        "setcover": g.SetCoverGenerator(400, 750),
        "cauctions": g.CombinatorialAuctionGenerator(100, 500, add_item_prob=0.7),
        "facilities": g.CapacitatedFacilityLocationGenerator(35, 35, continuous_assignment=False),
        "indset": g.IndependentSetGenerator(500),
    }


def main() -> None:
    """Print one row a family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--gyozas", action="store_true")
    arguments = parser.parse_args()
    others = gyozas_generators() if arguments.gyozas else {}
    print("| family | rows | columns | non-zeros | draw | into SCIP | write | gyozas |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, family in FAMILIES.items():
            if arguments.preset not in family.presets:
                continue
            draw, build, whole, other = [], [], [], []
            for k in range(1, arguments.repeats + 1):
                made = []
                draw.append(
                    milliseconds(
                        lambda f=family, n=k, m=made: m.append(
                            f.instance(arguments.preset, "test", 0, n)
                        )
                    )
                )
                milp = made[0]
                build.append(milliseconds(lambda p=milp: scip_model(p)))
                path = Path(folder) / "instance.lp"
                whole.append(milliseconds(lambda p=milp, to=path: write(p, to)))
                if name in others:
                    other.append(milliseconds(lambda g=others[name]: next(g)))
            writing = statistics.median(w - b for w, b in zip(whole, build, strict=True))
            theirs = f"{statistics.median(other):.0f}" if other else ""
            rows, columns = milp.matrix.shape
            print(
                f"| {name} | {rows:,} | {columns:,} | {milp.matrix.nnz:,} "
                f"| {statistics.median(draw):.1f} | {statistics.median(build):.1f} "
                f"| {writing:.1f} | {theirs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
