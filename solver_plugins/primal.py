"""Searching for good solutions near a prediction: Predict-and-Search, Apollo, and neither.

All three are one loop over trust regions: none is the solver alone, one is Predict-and-Search (Han
et al. 2023), several with a correction between them are Apollo (Liu et al. 2025). What time they
leave goes to the unrestricted problem, from the best solution so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from learn2branch.errors import InputError
from solver_plugins.arrays import Floats, MilpArrays
from solver_plugins.solvers import (
    INFEASIBLE,
    INTERRUPTED,
    LIMIT,
    OPTIMAL,
    Effort,
    Incumbent,
    Instance,
    Ints,
    Restriction,
    Result,
    Solver,
)

_SHORTEST_PHASE = 0.05  # seconds; with less left, a solver would only read the file
_PATIENCE = 0.5  # of a region's time; if it has shown no solution by then, it shows none


@dataclass(frozen=True)
class TrustRegion:
    """How many predictions to hold on to; below 1 a share of the binaries, from 1 a number."""

    k0: float  # lowest predictions, held at 0
    k1: float  # highest predictions, held at 1
    delta: float  # how many of all these may flip
    time: float = 1.0  # share of the time limit

    def __post_init__(self) -> None:
        for name in ("k0", "k1", "delta"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}: expected 0 or more")
        if not 0 < self.time <= 1:
            raise InputError(f"the time of a region is {self.time}: expected a share up to 1")

    def counts(self, binaries: int) -> tuple[int, int, int]:
        """Return k0, k1 and Delta as numbers of variables."""
        k0, k1, delta = (
            round(value * binaries) if value < 1 else min(round(value), binaries)
            for value in (self.k0, self.k1, self.delta)
        )
        return k0, k1, delta


@dataclass(frozen=True)
class Assignment:
    """A partial assignment of binaries, as predicted."""

    zeros: Ints
    ones: Ints
    delta: int

    def restriction(self, fixed: Ints, fixed_to: Floats) -> Restriction:
        """Allow `delta` flips: sum of x over the zeros + sum of 1 - x over the ones <= delta.

        For binaries |x - 0| and |x - 1| are linear, so that one row does what the literature does
        with an auxiliary variable and two rows for each of them.
        """
        return Restriction(
            members=np.concatenate([self.zeros, self.ones]),
            coefficients=np.concatenate([np.ones(len(self.zeros)), -np.ones(len(self.ones))]),
            side=float(self.delta - len(self.ones)),
            fixed=fixed,
            fixed_to=fixed_to,
        )


def free_binaries(arrays: MilpArrays) -> Ints:
    """Return the binaries whose bounds leave a choice."""
    return np.flatnonzero(arrays.is_binary & (arrays.lower < arrays.upper))


def most_certain(
    probabilities: Floats,
    candidates: Ints,
    region: TrustRegion,
    binaries: int,
    at_most: int | None = None,
) -> Assignment:
    """Choose the k0 lowest and the k1 highest predictions among candidates; ties by position.

    Where they would overlap, the ones go first. `at_most` bounds k0 + k1, in proportion.
    """
    k0, k1, delta = region.counts(binaries)
    if at_most is not None and k0 + k1 > at_most:
        k0 = k0 * at_most // (k0 + k1)
        k1 = at_most - k0 if k1 else 0
    ascending = candidates[np.argsort(probabilities[candidates], kind="stable")]
    ones = ascending[max(len(ascending) - k1, 0) :]
    zeros = ascending[: min(k0, len(ascending) - len(ones))]
    return Assignment(zeros, ones, delta)


@dataclass(frozen=True)
class Phase:
    """One solve within a search."""

    name: str  # "region 1", ..., "unrestricted"
    began: float  # seconds since the search began
    seconds: float
    status: str
    zeros: int = 0  # predictions held at 0
    ones: int = 0  # ... at 1
    delta: int = 0
    fixed: int = 0  # variables fixed by earlier corrections
    rejected: int = 0  # solutions that the instance did not accept


@dataclass(frozen=True)
class Search:
    """What a search found. Times count from its beginning, prediction included."""

    status: str  # OPTIMAL and INFEASIBLE are about the instance itself; LIMIT, INTERRUPTED
    incumbents: tuple[Incumbent, ...]  # in order, each better than the one before
    phases: tuple[Phase, ...]
    seconds: float

    @property
    def best(self) -> Incumbent | None:
        """The last incumbent."""
        return self.incumbents[-1] if self.incumbents else None


def search(
    instance: Instance,
    probabilities: Floats | None,
    regions: Sequence[TrustRegion],
    *,
    solver: Solver,
    time_limit: float,
    effort: Effort = Effort(),  # noqa: B008 - frozen
    started: float | None = None,
    on_incumbent: Callable[[Incumbent], None] | None = None,
) -> Search:
    """Search for good solutions of an instance within a wall time.

    probabilities: (n,) of each variable being 1; only the binaries' matter. No regions: the solver
    alone; one: Predict-and-Search; several: Apollo. `started` is the `time.perf_counter()` from
    which times count, so that a prediction made before the call is part of the time.
    """
    if regions and probabilities is None:
        raise InputError("a search in trust regions needs predictions")
    loop = _Loop(instance, solver, time_limit, effort, started, on_incumbent)
    if probabilities is not None:
        loop.search_regions(probabilities, regions)
    loop.search_everywhere()
    return Search(loop.status, tuple(loop.incumbents), tuple(loop.phases), loop.seconds)


class _Loop:
    def __init__(
        self,
        instance: Instance,
        solver: Solver,
        time_limit: float,
        effort: Effort,
        started: float | None,
        on_incumbent: Callable[[Incumbent], None] | None,
    ) -> None:
        self.instance, self.solver, self.effort = instance, solver, effort
        self.time_limit, self.on_incumbent = time_limit, on_incumbent
        self.started = time.perf_counter() if started is None else started
        self.incumbents: list[Incumbent] = []
        self.phases: list[Phase] = []
        self.status = LIMIT

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def best(self) -> Floats | None:
        return self.incumbents[-1].values if self.incumbents else None

    def search_regions(self, probabilities: Floats, regions: Sequence[TrustRegion]) -> None:
        candidates = free_binaries(self.instance.arrays)
        binaries = len(candidates)
        fixed, fixed_to = np.empty(0, np.int64), np.empty(0)
        for number, region in enumerate(regions, start=1):
            left = self.time_limit - self.seconds
            if left < _SHORTEST_PHASE or self.status == INTERRUPTED or not len(candidates):
                return
            seconds = min(left, region.time * self.time_limit)
            if number == len(regions) and region.time == 1:
                seconds = left
            # Later rounds leave half of what is undecided free: the paper's schedule for workload
            # would hold more variables than there are left.
            at_most = None if number == 1 else len(candidates) // 2
            held = most_certain(probabilities, candidates, region, binaries, at_most)
            self._phase(f"region {number}", seconds, held, fixed, fixed_to)
            if self.best is None:
                continue
            # Apollo's correction: where prediction and solution agree, fix; where they differ, the
            # prediction is not to be trusted and the variable stays free.
            members = np.concatenate([held.zeros, held.ones])
            predicted = np.repeat([0.0, 1.0], [len(held.zeros), len(held.ones)])
            agree = np.abs(self.best[members] - predicted) < 0.5
            fixed = np.concatenate([fixed, members[agree]])
            fixed_to = np.concatenate([fixed_to, predicted[agree]])
            candidates = np.setdiff1d(candidates, members)

    def search_everywhere(self) -> None:
        left = self.time_limit - self.seconds
        if self.status == INTERRUPTED or left < _SHORTEST_PHASE:
            return
        result = self._phase("unrestricted", left)
        if result is None:
            return
        # A solver that sees no solution beside one that was checked is mistaken: nothing is proven.
        if result.status == OPTIMAL or (result.status == INFEASIBLE and not self.incumbents):
            self.status = result.status

    def _phase(
        self,
        name: str,
        seconds: float,
        held: Assignment | None = None,
        fixed: Ints | None = None,
        fixed_to: Floats | None = None,
    ) -> Result | None:
        began = self.seconds
        restriction = None
        if held is not None and fixed is not None and fixed_to is not None:
            restriction = held.restriction(fixed, fixed_to)

        def on_incumbent(found: Incumbent) -> None:
            found = Incumbent(began + found.seconds, found.objective, found.values)
            arrays = self.instance.arrays
            best = self.incumbents[-1].objective if self.incumbents else arrays.worst
            if arrays.better(found.objective, best):
                self.incumbents.append(found)
                if self.on_incumbent is not None:
                    self.on_incumbent(found)

        result = None
        try:
            result = self.solver.solve(
                self.instance,
                seconds,
                self.effort,
                restriction=restriction,
                start=self.best,
                patience=None if restriction is None else _PATIENCE * seconds,
                on_incumbent=on_incumbent,
            )
        except KeyboardInterrupt:  # what was found so far is still the user's
            self.status = INTERRUPTED
        if result is not None and result.status == INTERRUPTED:
            self.status = INTERRUPTED
        self.phases.append(
            Phase(
                name,
                began,
                self.seconds - began,
                self.status if result is None else result.status,
                len(held.zeros) if held else 0,
                len(held.ones) if held else 0,
                held.delta if held else 0,
                len(fixed) if fixed is not None else 0,
                result.rejected if result else 0,
            )
        )
        return result
