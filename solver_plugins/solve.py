"""One solve of one instance with a policy or one of SCIP's rules, and everything measured in it.

Nothing here compares or aggregates; a `Solve` is what one row of a table of results is made of.
How fair nodes are obtained for each rule is in docs/evaluation.md.
"""

from __future__ import annotations

import gc
import json
import math
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pyscipopt import SCIP_EVENTTYPE, Eventhdlr, Model

from learn2branch.errors import InputError
from learn2branch.metrics import primal_integral
from solver_plugins.parameters import apply_protocol, set_parameters
from solver_plugins.reading import read_model

FINISHED = ("optimal", "infeasible", "unbounded", "inforunbd")  # statuses that settle an instance
_FIRST = 536_870_911  # a priority above every rule of SCIP


@dataclass(frozen=True)
class Solve:
    """What one solve did; None where a number does not exist. Times are wall seconds."""

    status: str  # SCIP's: optimal, infeasible, timelimit, nodelimit, …
    objective: float | None  # of the best solution, in the instance's own sense
    dual_bound: float | None
    gap: float | None  # SCIP's, relative
    nodes: int  # processed, over all restarts
    fair_nodes: int  # nodes + 2 * calls_without_branching
    calls_without_branching: int  # calls of a rule that reduced domains or cut the node off instead
    calls_cutting_off: int  # those of them that cut it off
    max_depth: int
    lps: int
    lp_iterations: int  # of all LPs, strong branching included
    strong_branchings: int  # LPs solved for strong branching
    wall_time: float  # of presolving and solving; reading the file and loading a policy are not in
    scip_time: float  # SCIP's own clock over the same
    cpu_time: float  # of this process over the same: far below wall_time means it had to wait
    lp_time: float  # in LPs of nodes, diving and conflicts
    strong_branching_time: float  # in LPs of strong branching
    primal_integral: float | None  # of the gap to the optimum, in seconds; None unless optimal
    dual_integral: float | None
    primal_dual_integral: float  # SCIP's, in percent times seconds; needs no optimum
    decisions: int | None  # branchings the policy decided; None for SCIP's rules
    fallbacks: int | None  # nodes it left to SCIP
    observation_time: float | None
    inference_time: float | None
    peak_memory: float  # of this process during the solve, MiB
    depths: tuple[int, ...]  # nodes at depth 0, 1, …

    @property
    def finished(self) -> bool:
        """Whether the instance is settled."""
        return self.status in FINISHED

    @property
    def deciding_share(self) -> float:
        """The share of the wall time a policy spent observing and inferring; 0 for SCIP's rules."""
        deciding = (self.observation_time or 0.0) + (self.inference_time or 0.0)
        return deciding / self.wall_time if self.wall_time else 0.0


def solve(
    instance: str | Path,
    *,
    rule: str | None = None,
    policy: Any = None,
    protocol: str = "gasse",
    seed: int | None = 0,
    time_limit: float | None = 3600.0,
    node_limit: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    log: bool = False,
    solution: str | Path | None = None,
) -> Solve:
    """Solve an instance with one of SCIP's rules (by name) or with a policy.

    `policy` is whatever `include_branchrule` takes: a file, the name of a shipped policy, a loaded
    policy or a callable. With neither, SCIP's default rule branches. `parameters` are SCIP's and
    are set last. `solution` is a file for the best solution, written if there is one.
    """
    if solution is not None and not Path(solution).parent.is_dir():
        raise InputError(f"{solution} cannot be written: there is no folder for it")
    model = read_model(instance)
    model.setProbName("instance")  # SCIP writes it into its statistics as it is, quotes and all
    if log:
        model.hideOutput(False)
    apply_protocol(model, protocol, seed, time_limit)
    if node_limit is not None:
        model.setParam("limits/totalnodes", node_limit)
    if rule is not None:
        prefer_rule(model, rule)
    branchrule = None
    if policy is not None:
        from solver_plugins.branchrule import include_branchrule

        branchrule = include_branchrule(model, policy)
    set_parameters(model, parameters or {})
    watch = _Watch()
    model.includeEventhdlr(watch, "learn2branch_watch", "counts nodes and follows the bounds")

    _forget_peak_memory()
    cpu = time.process_time()
    started = watch.started = time.perf_counter()
    model.optimize()
    wall_time = time.perf_counter() - started
    cpu_time = time.process_time() - cpu
    peak_memory = _peak_memory()
    if solution is not None and model.getNSols() > 0:
        model.writeBestSol(str(solution))
    result = _measure(model, watch, branchrule, wall_time, cpu_time, peak_memory)
    # A model and its plugins refer to each other: freed here, not in the next solve's time.
    del model, watch, branchrule
    gc.collect()
    return result


def new_model() -> Model:
    """Return an empty, silent model."""
    model = Model()
    model.hideOutput()
    return model


def prefer_rule(model: Model, rule: str) -> None:
    """Let one of SCIP's branching rules decide at every node."""
    if rule not in scip_rules():
        raise InputError(f"SCIP has no branching rule {rule!r}: it has {', '.join(scip_rules())}")
    model.setParam(f"branching/{rule}/priority", _FIRST)
    model.setParam(f"branching/{rule}/maxdepth", -1)
    model.setParam(f"branching/{rule}/maxbounddist", 1.0)


@cache
def scip_rules() -> tuple[str, ...]:
    """Return the names of SCIP's branching rules, sorted."""
    names = new_model().getParams()
    found = (re.fullmatch(r"branching/(\w+)/maxbounddist", name) for name in names)
    return tuple(sorted(match[1] for match in found if match))


class _Watch(Eventhdlr):
    """Nodes by depth, and the bounds with their times. Costs the same for every rule."""

    def __init__(self) -> None:
        self.started = 0.0
        self.depths: Counter[int] = Counter()
        self.primal: list[tuple[float, float]] = []  # (seconds, bound)
        self.dual: list[tuple[float, float]] = []

    def eventinit(self) -> None:
        for event in _WATCHED:
            self.model.catchEvent(event, self)

    def eventexit(self) -> None:
        for event in _WATCHED:
            self.model.dropEvent(event, self)

    def eventexec(self, event: Any) -> None:
        kind = event.getType()
        if kind == SCIP_EVENTTYPE.NODEFOCUSED:
            self.depths[self.model.getDepth()] += 1
        elif kind == SCIP_EVENTTYPE.BESTSOLFOUND:
            # SCIP tells of a solution before its primal bound follows.
            found = self.model.getSolObjVal(self.model.getBestSol())
            self.primal.append((time.perf_counter() - self.started, found))
        else:
            self.dual.append((time.perf_counter() - self.started, self.model.getDualbound()))


_WATCHED = (
    SCIP_EVENTTYPE.NODEFOCUSED,
    SCIP_EVENTTYPE.BESTSOLFOUND,
    SCIP_EVENTTYPE.DUALBOUNDIMPROVED,
)


def _measure(
    model: Model,
    watch: _Watch,
    branchrule: Any,
    wall_time: float,
    cpu_time: float,
    peak_memory: float,
) -> Solve:
    statistics = _statistics(model)
    # A solve that ended in presolving has neither LPs nor branching rules to tell of.
    lp = {name: part for name, part in statistics.get("lp", {}).items() if "time" in part}
    strong = lp.pop("strongbranch_lp", {"time": 0.0, "calls": 0, "iterations": 0})
    rules = statistics.get("branchrules", {"plugins": {}})["plugins"]
    nodes = model.getNTotalNodes()
    # Each call of a rule that ran either branched, into two children, or changed the node.
    idle = sum(
        max(0, rule["nlpcalls"] + rule["npscalls"] + rule["nexterncalls"] - rule["nchildren"] // 2)
        for rule in rules.values()
    )
    status = model.getStatus()
    # The solution that SCIP has of an unbounded problem is any, not the best.
    solved = model.getNSols() > 0 and status != "unbounded"
    objective = _finite(model, model.getObjVal()) if solved else None
    primal = dual = None
    if status == "optimal" and objective is not None:
        primal, dual = (
            primal_integral([t for t, _ in trace], [b for _, b in trace], objective, wall_time)
            for trace in (watch.primal, watch.dual)
        )
    used = branchrule.statistics if branchrule is not None else None
    return Solve(
        status=status,
        objective=objective,
        dual_bound=_finite(model, model.getDualbound()),
        gap=_finite(model, model.getGap()),
        nodes=nodes,
        fair_nodes=nodes + 2 * idle,
        calls_without_branching=idle,
        calls_cutting_off=sum(rule["ncutoffs"] for rule in rules.values()),
        max_depth=max(watch.depths, default=0),
        lps=model.getNLPs(),
        lp_iterations=model.getNLPIterations() + strong["iterations"],
        strong_branchings=strong["calls"],
        wall_time=wall_time,
        scip_time=model.getSolvingTime(),
        cpu_time=cpu_time,
        lp_time=sum(part["time"] for part in lp.values()),
        strong_branching_time=strong["time"],
        primal_integral=primal,
        dual_integral=dual,
        primal_dual_integral=model.getPrimalDualIntegral(),
        decisions=used.decisions if used else None,
        fallbacks=sum(used.fallbacks.values()) if used else None,
        observation_time=used.observation_seconds if used else None,
        inference_time=used.inference_seconds if used else None,
        peak_memory=peak_memory,
        depths=tuple(watch.depths[d] for d in range(max(watch.depths, default=-1) + 1)),
    )


def _statistics(model: Model) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "statistics.json"
        model.writeStatisticsJson(str(file))
        text = file.read_text()
    statistics: dict[str, Any] = json.loads(text)
    return statistics


def _finite(model: Model, value: float) -> float | None:
    return None if math.isnan(value) or model.isInfinity(abs(value)) else value


def _forget_peak_memory() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not Linux: the peak is then that of the process since it began


def _peak_memory() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
