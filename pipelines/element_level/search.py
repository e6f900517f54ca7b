"""Searching one instance of a user, with its incumbents shown as they are found."""

from __future__ import annotations

import time
from pathlib import Path

from learn2branch.errors import InputError, WorkError
from learn2branch.runs import replace_file
from pipelines.element_level.predict import Predictor
from pipelines.element_level.presets import as_shares, trust_regions
from pipelines.progress import say
from solver_plugins.primal import Search, TrustRegion, free_binaries, search
from solver_plugins.solvers import INFEASIBLE, Effort, Incumbent, Instance, get_solver


def search_file(
    path: Path | str,
    model: Path | str | None = None,
    *,
    method: str = "apollo",
    time_limit: float = 60.0,
    solver: str = "scip",
    region: TrustRegion | None = None,
    seed: int = 0,
    solution: Path | str | None = None,
) -> Search:
    """Search a file within a wall time; write the best solution to a file, if one is given.

    The model's family decides the trust regions, unless a region is given. Every solution has been
    checked against the instance.
    """
    if model is None and method != "solver":
        raise InputError(f"the method {method} needs a model: give --model, or --method solver")
    if solution is not None and Path(solution).is_dir():
        raise InputError(f"{solution} is a folder: give a file for the solution")
    chosen = get_solver(solver)
    predictor = Predictor(model) if model is not None and method != "solver" else None
    began = time.perf_counter()
    instance = Instance.read(path)
    binaries = len(free_binaries(instance.arrays))
    probabilities, regions = None, []
    if predictor is not None:
        probabilities = predictor(instance.arrays)
        family = str(predictor.provenance.get("problem", ""))
        own = None if region is None else as_shares(region, binaries)
        regions = trust_regions(method, family, predictor.backbone, own)
        say(f"{binaries} free binaries, predicted in {time.perf_counter() - began:.2f} s")
    found = search(
        instance,
        probabilities,
        regions,
        solver=chosen,
        time_limit=time_limit,
        effort=Effort(seed=seed),
        started=began,
        on_incumbent=_show,
    )
    for phase in found.phases:
        say(
            f"{phase.name}: {phase.status} after {phase.seconds:.1f} s (held {phase.zeros} at 0 "
            f"and {phase.ones} at 1, {phase.delta} flips, {phase.fixed} fixed)"
        )
    if found.best is not None and solution is not None:
        write_solution(instance, found.best, Path(solution))
    if found.best is None:
        if found.status == INFEASIBLE:
            raise WorkError(f"{path} is infeasible")
        raise WorkError(f"no solution of {path} within {time_limit:g} s: give it more time")
    return found


def write_solution(instance: Instance, found: Incumbent, path: Path) -> None:
    """Write a solution as SCIP does: the objective value, then the variables that are not 0."""
    lines = [f"objective value: {found.objective:.15g}"]
    lines += [
        f"{name} {value:.15g}"
        for name, value in zip(instance.arrays.names, found.values, strict=True)
        if value != 0
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, ("\n".join(lines) + "\n").encode())


def _show(found: Incumbent) -> None:
    say(f"{found.seconds:8.2f} s  {found.objective:.10g}")
