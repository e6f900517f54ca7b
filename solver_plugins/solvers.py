"""The solvers a primal pipeline can drive, behind one call: SCIP, HiGHS, Gurobi where licensed.

Each solves an instance, restricted or not, from a start or not, and reports its incumbents as it
finds them, by its own events and with wall times. Every solution reported has been checked here
against the original instance, and its objective value computed from it.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from learn2branch.errors import InputError, WorkError
from solver_plugins.arrays import Floats, MilpArrays, read_arrays

Ints = npt.NDArray[np.int64]

OPTIMAL, INFEASIBLE, LIMIT, INTERRUPTED = "optimal", "infeasible", "limit", "interrupted"
_UNBOUNDED = "unbounded or infeasible"  # never in a result
_AGREE = 1e-6  # a value and its bound, relative or absolute


@dataclass(frozen=True)
class Instance:
    """A file and its arrays, read once."""

    path: Path
    arrays: MilpArrays

    @staticmethod
    def read(path: str | Path) -> Instance:
        """Read the file."""
        return Instance(Path(path), read_arrays(path))


@dataclass(frozen=True)
class Restriction:
    """What is added to an instance: some variables fixed, and one row `coefficients @ x <= side`.

    Without members there is no row.
    """

    members: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # variables of the row
    coefficients: Floats = field(default_factory=lambda: np.empty(0))
    side: float = 0.0
    fixed: Ints = field(default_factory=lambda: np.empty(0, np.int64))  # fixed variables
    fixed_to: Floats = field(default_factory=lambda: np.empty(0))

    def holds(self, x: Floats, tolerance: float = 1e-6) -> bool:
        """Tell whether a point satisfies it."""
        row = not len(self.members) or self.coefficients @ x[self.members] <= self.side + tolerance
        return bool(row and np.all(np.abs(x[self.fixed] - self.fixed_to) <= tolerance))


@dataclass(frozen=True)
class Incumbent:
    """A feasible solution that was the best so far when it was found."""

    seconds: float  # wall time since the solve began
    objective: float  # in the sense of the file
    values: Floats  # (n,)


@dataclass(frozen=True)
class Result:
    """What a solve left: `optimal` and `infeasible` are about the problem as restricted."""

    status: str  # OPTIMAL, INFEASIBLE, LIMIT or INTERRUPTED
    incumbents: tuple[Incumbent, ...]  # in order, each better than the one before
    pool: tuple[Incumbent, ...]  # the best distinct solutions, best first; at most pool_size
    bound: float  # dual bound of the problem as restricted
    seconds: float  # wall time, building the model included
    rejected: int  # solutions that the solver reported but the instance does not accept

    @property
    def best(self) -> Incumbent | None:
        """The last incumbent."""
        return self.incumbents[-1] if self.incumbents else None


@dataclass(frozen=True)
class Effort:
    """How a solver is to work; the same for every method that is compared."""

    seed: int = 0
    threads: int = 1
    focus: bool = True  # on finding solutions rather than on proving, as Predict-and-Search does
    pool_size: int = 1  # solutions to keep


@dataclass(frozen=True)
class _Job:
    instance: Instance
    time_limit: float
    effort: Effort
    restriction: Restriction | None
    start: Floats | None
    patience: float | None


class _Record:
    """The solutions of one solve: checked, timed, and the best kept."""

    def __init__(
        self,
        arrays: MilpArrays,
        pool_size: int,
        on_incumbent: Callable[[Incumbent], None] | None,
    ) -> None:
        self.arrays, self.pool_size, self.on_incumbent = arrays, pool_size, on_incumbent
        self.started = time.perf_counter()
        self.incumbents: list[Incumbent] = []
        self.pool: dict[bytes, Incumbent] = {}  # by the values of the integer variables
        self.rejected = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def is_hopeless(self, patience: float | None) -> bool:
        return patience is not None and not self.incumbents and self.seconds > patience

    def add(self, values: Floats) -> None:
        """Take a solution from the solver at the moment it is found."""
        seconds = self.seconds
        if not self.arrays.is_feasible(values):
            self.rejected += 1
            return
        found = Incumbent(seconds, self.arrays.objective_of(values), values)
        best = self.incumbents[-1].objective if self.incumbents else self.arrays.worst
        if self.arrays.better(found.objective, best):
            self.incumbents.append(found)
            if self.on_incumbent is not None:
                self.on_incumbent(found)
        self._keep(found)

    def _keep(self, found: Incumbent) -> None:
        whole = np.round(found.values[self.arrays.is_integer]) + 0.0  # so that -0 is 0
        known = self.pool.get(key := whole.tobytes())
        if known is None or self.arrays.better(found.objective, known.objective):
            self.pool[key] = found
        if len(self.pool) > 2 * self.pool_size:
            kept = self.best_of_pool()
            self.pool = {key: one for key, one in self.pool.items() if any(one is k for k in kept)}

    def best_of_pool(self) -> tuple[Incumbent, ...]:
        sign = -1 if self.arrays.maximise else 1
        return tuple(sorted(self.pool.values(), key=lambda one: sign * one.objective))[
            : self.pool_size
        ]

    def result(
        self, instance: Instance, restriction: Restriction | None, status: str, bound: float
    ) -> Result:
        if status == _UNBOUNDED:
            if restriction is None:
                raise InputError(
                    f"{instance.path} is unbounded or infeasible: there is nothing to search for"
                )
            status = INFEASIBLE  # the instance itself has been solved before, so it is bounded
        if status == OPTIMAL and self.rejected and not self._reaches(bound):
            status = LIMIT  # the optimum was among what the instance does not accept
        return Result(
            status, tuple(self.incumbents), self.best_of_pool(), bound, self.seconds, self.rejected
        )

    def _reaches(self, bound: float) -> bool:
        best = self.incumbents[-1].objective if self.incumbents else self.arrays.worst
        return math.isclose(best, bound, rel_tol=_AGREE, abs_tol=_AGREE)


class Solver(ABC):
    """One solver; `get_solver` makes them."""

    name: str

    def solve(
        self,
        instance: Instance,
        time_limit: float,
        effort: Effort = Effort(),  # noqa: B008 - frozen
        *,
        restriction: Restriction | None = None,
        start: Floats | None = None,
        patience: float | None = None,
        on_incumbent: Callable[[Incumbent], None] | None = None,
    ) -> Result:
        """Solve within a wall time, in seconds.

        `start` is a solution to begin from, used where it satisfies the restriction. After
        `patience` seconds a solve that has no solution at all stops.
        """
        record = _Record(instance.arrays, effort.pool_size, on_incumbent)
        job = _Job(instance, time_limit, effort, restriction, start, patience)
        status, bound = self._run(job, record)
        return record.result(instance, restriction, status, bound)

    @abstractmethod
    def _run(self, job: _Job, record: _Record) -> tuple[str, float]:
        """Solve, give every solution to the record, and return the status and the dual bound."""


class Scip(Solver):
    """SCIP through pyscipopt; the default, as it comes with the package."""

    name = "scip"

    def _run(self, job: _Job, record: _Record) -> tuple[str, float]:
        from pyscipopt import SCIP_EVENTTYPE, SCIP_PARAMSETTING, Eventhdlr

        from solver_plugins import arrays as scip
        from solver_plugins.parameters import apply_protocol
        from solver_plugins.reading import read_model

        model = read_model(job.instance.path)
        apply_protocol(model, "default", job.effort.seed)
        model.setParams({"timing/clocktype": 2, "limits/maxsol": max(job.effort.pool_size, 100)})
        if job.effort.focus:
            model.setHeuristics(SCIP_PARAMSETTING.AGGRESSIVE)
        if job.restriction is not None:
            _restrict_scip(model, job.restriction)
        variables = scip.original_variables(model)
        if job.start is not None:
            scip.add_solution(model, variables, job.start)

        def limit(seconds: float) -> None:
            # SCIP's clock starts with the solve, ours with the reading of the file.
            left = seconds - (record.seconds - model.getSolvingTime())
            model.setParam("limits/time", max(left, 0.0))

        errors: list[BaseException] = []

        class Incumbents(Eventhdlr):
            def eventinit(self) -> None:
                self.model.catchEvent(SCIP_EVENTTYPE.BESTSOLFOUND, self)
                if model.getNSols():  # the start, which SCIP has taken up before any event
                    self.eventexec(None)

            def eventexit(self) -> None:
                self.model.dropEvent(SCIP_EVENTTYPE.BESTSOLFOUND, self)

            def eventexec(self, event: Any) -> None:
                # An exception must not cross SCIP: it ends the solve and is raised after it.
                try:
                    had_none = not record.incumbents
                    record.add(scip.best_values(model, variables))
                    if had_none and record.incumbents:
                        limit(job.time_limit)
                except BaseException as error:
                    errors.append(error)
                    model.interruptSolve()

        model.includeEventhdlr(Incumbents(), "incumbents", "records solutions with their times")
        limit(job.time_limit if job.patience is None else min(job.patience, job.time_limit))
        try:
            model.optimize()
            if errors:
                raise errors[0]
            for values in scip.all_values(model, variables):
                record.add(values)
            status, bound = model.getStatus(), model.getDualbound()
        finally:
            model.free()  # now, not when Python happens to look for the cycle of model and handler
        names = {"optimal": OPTIMAL, "infeasible": INFEASIBLE, "userinterrupt": INTERRUPTED}
        names |= dict.fromkeys(("unbounded", "inforunbd"), _UNBOUNDED)
        return names.get(status, LIMIT), bound


def _restrict_scip(model: Any, restriction: Restriction) -> None:
    from pyscipopt import quicksum

    variables = model.getVars()
    for j, value in zip(restriction.fixed, restriction.fixed_to, strict=True):
        model.chgVarLb(variables[j], value)
        model.chgVarUb(variables[j], value)
    if len(restriction.members):
        terms = zip(restriction.coefficients, restriction.members, strict=True)
        model.addCons(quicksum(a * variables[j] for a, j in terms) <= restriction.side)


class Highs(Solver):
    """HiGHS through highspy."""

    name = "highs"

    def __init__(self) -> None:
        _require("highspy", "HiGHS", "highs")

    def _run(self, job: _Job, record: _Record) -> tuple[str, float]:
        import highspy

        highs = highspy.Highs()
        highs.silent()
        highs.setOptionValue("random_seed", job.effort.seed)
        highs.setOptionValue("threads", job.effort.threads)
        if job.effort.focus:
            highs.setOptionValue("mip_heuristic_effort", 0.2)  # HiGHS' default is 0.05
        highs.passModel(_highs_model(job.instance.arrays, job.restriction))
        if job.start is not None:
            solution = highspy.HighsSolution()
            solution.col_value = job.start.tolist()
            highs.setSolution(solution)

        def on_solution(event: Any) -> None:
            record.add(np.array(event.data_out.mip_solution, np.float64))

        def on_interrupt(event: Any) -> None:
            if record.is_hopeless(job.patience):
                event.interrupt()

        highs.cbMipSolution += on_solution
        highs.cbMipImprovingSolution += on_solution
        highs.cbMipInterrupt += on_interrupt
        highs.setOptionValue("time_limit", max(job.time_limit - record.seconds, 0.0))
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            record.add(np.array(highs.getSolution().col_value, np.float64))
        kinds = highspy.HighsModelStatus
        names = {kinds.kOptimal: OPTIMAL, kinds.kInfeasible: INFEASIBLE}
        names |= dict.fromkeys((kinds.kUnbounded, kinds.kUnboundedOrInfeasible), _UNBOUNDED)
        kind = names.get(status, LIMIT)
        return kind, info.mip_dual_bound


def _highs_model(arrays: MilpArrays, restriction: Restriction | None) -> Any:
    import highspy

    lower, upper, matrix, lhs, rhs = _restricted(arrays, restriction)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = arrays.num_variables, len(rhs)
    lp.sense_ = highspy.ObjSense.kMaximize if arrays.maximise else highspy.ObjSense.kMinimize
    lp.col_cost_, lp.offset_ = arrays.objective, arrays.offset
    lp.col_lower_, lp.col_upper_ = lower, upper
    lp.row_lower_, lp.row_upper_ = lhs, rhs
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.indptr
    lp.a_matrix_.index_, lp.a_matrix_.value_ = matrix.indices, matrix.data
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[integer] for integer in arrays.is_integer.astype(int)]
    return lp


def _restricted(
    arrays: MilpArrays, restriction: Restriction | None
) -> tuple[Floats, Floats, Any, Floats, Floats]:
    """Return lower, upper, matrix, lhs and rhs of an instance with its restriction."""
    from scipy.sparse import csr_matrix, vstack

    lower, upper = arrays.lower.copy(), arrays.upper.copy()
    matrix, lhs, rhs = arrays.matrix, arrays.lhs, arrays.rhs
    if restriction is not None:
        lower[restriction.fixed] = upper[restriction.fixed] = restriction.fixed_to
        if count := len(restriction.members):
            places = (np.zeros(count, np.int64), restriction.members)
            row = csr_matrix((restriction.coefficients, places), shape=(1, arrays.num_variables))
            matrix = vstack([matrix, row], format="csr")
            lhs, rhs = np.append(lhs, -np.inf), np.append(rhs, restriction.side)
    return lower, upper, matrix, lhs, rhs


class Gurobi(Solver):
    """Gurobi through gurobipy, where it is installed and licensed."""

    name = "gurobi"

    def __init__(self) -> None:
        _require("gurobipy", "Gurobi", "gurobi")
        import gurobipy

        try:
            self._environment = gurobipy.Env(params={"OutputFlag": 0})
        except gurobipy.GurobiError as error:
            raise InputError(
                f"Gurobi has no licence here ({error}): choose another solver"
            ) from error

    def _run(self, job: _Job, record: _Record) -> tuple[str, float]:
        from gurobipy import GRB, GurobiError, Model

        arrays = job.instance.arrays
        lower, upper, matrix, lhs, rhs = _restricted(arrays, job.restriction)
        model = Model(env=self._environment)
        model.Params.Seed, model.Params.Threads = job.effort.seed, job.effort.threads
        if job.effort.focus:
            model.Params.MIPFocus = 1
        if job.effort.pool_size > 1:
            model.Params.PoolSearchMode, model.Params.PoolSolutions = 2, job.effort.pool_size
        kinds = np.where(arrays.is_integer, GRB.INTEGER, GRB.CONTINUOUS)
        x = model.addMVar(arrays.num_variables, lb=lower, ub=upper, vtype=kinds)
        sense = GRB.MAXIMIZE if arrays.maximise else GRB.MINIMIZE
        model.setObjective(arrays.objective @ x + arrays.offset, sense)
        for rows, side, relation in (
            (lhs == rhs, rhs, "="),
            ((lhs != rhs) & np.isfinite(rhs), rhs, "<"),
            ((lhs != rhs) & np.isfinite(lhs), lhs, ">"),
        ):
            if rows.any():
                model.addMConstr(matrix[rows], x, relation, side[rows])
        if job.start is not None:
            x.Start = job.start

        def watch(model: Any, where: int) -> None:
            if where == GRB.Callback.MIPSOL:
                record.add(np.array(model.cbGetSolution(x), np.float64))
            elif record.is_hopeless(job.patience):
                model.terminate()

        model.Params.TimeLimit = max(job.time_limit - record.seconds, 0.0)
        try:
            model.optimize(watch)
        except GurobiError as error:
            raise WorkError(f"Gurobi could not solve {job.instance.path}: {error}") from error
        status = model.Status
        for number in range(model.SolCount if model.IsMIP else 0):
            model.Params.SolutionNumber = number
            record.add(np.array(x.Xn, np.float64))
        names = {GRB.OPTIMAL: OPTIMAL, GRB.INFEASIBLE: INFEASIBLE}
        names |= dict.fromkeys((GRB.UNBOUNDED, GRB.INF_OR_UNBD), _UNBOUNDED)
        bound = model.ObjBound if model.IsMIP else np.nan
        return names.get(status, LIMIT), bound


def _require(package: str, name: str, extra: str) -> None:
    if find_spec(package) is None:
        raise InputError(
            f"{name} needs the package {package}: pip install learn2branch[{extra}], "
            "or choose another solver"
        )


SOLVERS: dict[str, Callable[[], Solver]] = {"scip": Scip, "highs": Highs, "gurobi": Gurobi}


def get_solver(name: str) -> Solver:
    """Return a solver by name, if it can be used here."""
    if name not in SOLVERS:
        raise InputError(f"there is no solver {name!r}: choose from {', '.join(SOLVERS)}")
    return SOLVERS[name]()
