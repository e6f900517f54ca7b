"""Collecting: samples a second and core, size, and what we add to SCIP's own time.

    python benchmarks/collect.py [FAMILY] [SAMPLES] [JOBS] [PRESET]

Ours is the time in which states are observed and samples encoded; SCIP's is the rest of the solve,
strong branching included. Ecole 0.8.1 made 1.1 samples a second and core with gzip-pickles on set
cover 400 x 750 with the same probability, 1.4 without writing them; `benchmarks/backends.py` runs
it beside ours.
"""

from __future__ import annotations

import sys
import tempfile
import time

from pipelines.branching.collect import collect


def main() -> None:
    """Collect into a temporary folder and print what it took."""
    defaults = ("setcover", "60", "1", "paper")
    family, samples, jobs, preset = (*sys.argv[1:], *defaults[len(sys.argv) - 1 :])
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _, splits = collect(
            family, preset=preset, samples=int(samples), jobs=int(jobs), out=folder,
            data=f"{folder}/data",
        )  # fmt: skip
        wall = time.perf_counter() - began
    parts = splits.values()
    ours, solve = sum(s.our_seconds for s in parts), sum(s.solve_seconds for s in parts)
    work, made = sum(s.work_seconds for s in parts), sum(s.made for s in parts)
    kept, size = sum(s.samples for s in parts), sum(s.bytes for s in parts)
    print(
        f"{family}, {preset}: {made} samples made, {kept} kept, {wall:.0f} s with {jobs} processes"
    )
    print(f"{made / work:.2f} samples a second and core, {size / kept / 1024:.1f} KiB a sample")
    print(f"we add {100 * ours / (solve - ours):.2f} % to SCIP's own time")


if __name__ == "__main__":
    main()
