"""`NeuralBranchrule`: a policy as a branching rule of SCIP.

The rule can only choose among SCIP's own candidates, and whatever goes wrong hands the decision to
SCIP's next rule, so it changes how long a solve takes and never what it answers.
"""

from __future__ import annotations

import inspect
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pyscipopt import SCIP_LPSOLSTAT, SCIP_RESULT, SCIP_STAGE, Branchrule, Model
from torch import Tensor

from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from solver_plugins.observation import Observer

Policy = Callable[..., Tensor]

_TIMED_STAGES = (SCIP_STAGE.PRESOLVING, SCIP_STAGE.PRESOLVED, SCIP_STAGE.SOLVING, SCIP_STAGE.SOLVED)

_NAME = "learn2branch"  # among SCIP's rules
# Above every rule that SCIP has by default.
PRIORITY = 536_870_911


@dataclass
class Statistics:
    """What a rule has done so far in its solve, or in all solves of its model."""

    decisions: int = 0  # nodes it branched on
    fallbacks: Counter[str] = field(default_factory=Counter)  # nodes left to SCIP, by cause
    observation_seconds: float = 0.0
    inference_seconds: float = 0.0
    branching_seconds: float = 0.0
    solving_seconds: float = 0.0  # of SCIP, all included

    @property
    def seconds(self) -> float:
        """Wall time spent in the rule."""
        return self.observation_seconds + self.inference_seconds + self.branching_seconds

    @property
    def share(self) -> float:
        """Share of the solving time that was spent in the rule."""
        return self.seconds / self.solving_seconds if self.solving_seconds > 0 else 0.0

    def __str__(self) -> str:
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(self.fallbacks.items()))
        return (
            f"{self.decisions} decisions, {self.fallbacks.total()} left to SCIP"
            f"{f' ({causes})' if causes else ''}; "
            f"observation {self.observation_seconds:.3f} s, "
            f"inference {self.inference_seconds:.3f} s, "
            f"branching {self.branching_seconds:.3f} s, "
            f"{self.share:.1%} of {self.solving_seconds:.2f} s"
        )


class _Fallback(Exception):
    """Why a decision is left to SCIP; the first argument is the cause that is counted."""


class NeuralBranchrule(Branchrule):
    """Branch on the candidate that a policy scores highest; see `include_branchrule`."""

    def __init__(
        self,
        policy: Policy,
        *,
        time_share: float = 1.0,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        strict: bool = False,
    ) -> None:
        if not 0.0 <= time_share <= 1.0:
            raise InputError(f"time_share is {time_share}: give a share between 0 and 1")
        if threads is not None and threads < 1:
            raise InputError(f"threads is {threads}: give a positive number, or None")
        self.policy = policy
        self.time_share = time_share
        self.device = torch.device(device)
        self.threads = threads
        self.strict = strict
        self._statistics = Statistics()
        self._earlier_seconds = 0.0  # of the model's solves before this one
        self._freed = False
        self._weak_model: weakref.ref[Model] | None = None
        self.error: Exception | None = None  # the last one that cost a decision
        self._takes_candidates = _accepts_candidates(policy)
        self._other_schema = _schema_of(policy) not in (None, STATE.hash)
        self._observer = Observer()
        self._edges: tuple[Tensor, Tensor] | None = None  # as observed
        self._edges_on_device: tuple[Tensor, Tensor] | None = None

    @property
    def model(self) -> Any:
        """The model this rule is included in, or None if there is none any more."""
        return Branchrule.model.__get__(self) if self._weak_model is None else self._weak_model()

    @model.setter
    def model(self, model: Model | None) -> None:
        self._weak_model = None
        Branchrule.model.__set__(self, model)

    def _let_go_of(self, model: Model) -> None:
        # PySCIPOpt makes model and rule hold each other, so that a model dropped by its user lives
        # on, megabytes of SCIP with it, until Python looks for cycles.
        self.model = None
        self._weak_model = weakref.ref(model)

    @property
    def statistics(self) -> Statistics:
        """What the rule has done so far, also while the solve runs."""
        model = None if self._freed else self.model
        if model is not None and model.getStage() in _TIMED_STAGES:
            self._statistics.solving_seconds = self._earlier_seconds + model.getSolvingTime()
        return self._statistics

    # SCIP's callbacks. Returning DIDNOTRUN hands the node to the rule with the next priority.

    def branchinit(self) -> None:
        """Begin a solve of the model: SCIP's clock starts anew."""
        self._earlier_seconds = self._statistics.solving_seconds

    def branchexeclp(self, allowaddcons: bool) -> dict[str, Any]:
        """Branch at a node with a fractional LP solution."""
        try:
            self._branch()
        except _Fallback as cause:
            return self._leave_to_scip(cause.args[0], cause.__cause__ or cause)
        except Exception as error:
            return self._leave_to_scip("exception", error)
        except KeyboardInterrupt:  # as SCIP itself answers Ctrl-C: the solve ends with what it has
            self.model.interruptSolve()
            return {"result": SCIP_RESULT.DIDNOTRUN}
        self._statistics.decisions += 1
        return {"result": SCIP_RESULT.BRANCHED}

    def branchexecps(self, allowaddcons: bool) -> dict[str, Any]:
        """Leave a node without a fractional LP solution to SCIP: there are no LP candidates."""
        self._statistics.fallbacks["no LP solution"] += 1
        return {"result": SCIP_RESULT.DIDNOTRUN}

    def branchexecext(self, allowaddcons: bool) -> dict[str, Any]:
        """Leave candidates that are not LP candidates (of non-linear problems) to SCIP."""
        self._statistics.fallbacks["external candidates"] += 1
        return {"result": SCIP_RESULT.DIDNOTRUN}

    def branchexitsol(self) -> None:
        """Drop what was kept of this solve, or of this run where SCIP restarts."""
        self._observer = Observer()
        self._edges = self._edges_on_device = None

    def branchfree(self) -> None:
        """Note that SCIP is gone: the model can no longer be asked."""
        self._freed = True

    def _branch(self) -> None:
        statistics = self.statistics
        if self.time_share < 1.0 and statistics.share > self.time_share:
            raise _Fallback("time share")
        if self._other_schema:
            raise _Fallback("schema", "the policy was made for other features")
        if self.model.getLPSolstat() != SCIP_LPSOLSTAT.OPTIMAL:  # unbounded, say
            raise _Fallback("no LP solution")
        # Only candidates of the highest branching priority may be chosen; SCIP lists them first.
        variables, _, _, _, num_allowed, _ = self.model.getLPBranchCands()
        if num_allowed == 0:
            raise _Fallback("no candidates")
        started = time.perf_counter()
        try:
            state = self._observer.observe(self.model)
            candidates = self._observer.candidates(self.model)[:num_allowed]
        finally:
            observed = time.perf_counter()
            statistics.observation_seconds += observed - started
        try:
            best = self._best(state, candidates)
        finally:
            decided = time.perf_counter()
            statistics.inference_seconds += decided - observed
        self.model.branchVar(variables[best])
        statistics.branching_seconds += time.perf_counter() - decided

    def _best(self, state: BipartiteGraph, candidates: Tensor) -> int:
        with torch.inference_mode(), _torch_threads(self.threads):
            arguments = self._on_device(state)
            if self._takes_candidates:
                scores = self.policy(*arguments, candidates=candidates.to(self.device))
            else:
                scores = self.policy(*arguments)
                if scores.shape == (state.num_variables,):
                    scores = scores[candidates.to(scores.device)]
            if scores.shape != (len(candidates),):
                raise ValueError(
                    f"the policy returned scores of shape {tuple(scores.shape)} for "
                    f"{state.num_variables} variables, {len(candidates)} of them candidates"
                )
            if not torch.isfinite(scores).all():
                raise _Fallback("non-finite scores", "the policy returned a non-finite score")
            return int(scores.argmax())

    def _on_device(self, state: BipartiteGraph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if self.device.type == "cpu":
            return state.tensors()
        edges = (state.edge_index, state.edge_values)
        if self._edges is None or self._edges[0] is not edges[0] or self._edges[1] is not edges[1]:
            self._edges = edges
            self._edges_on_device = (edges[0].to(self.device), edges[1].to(self.device))
        assert self._edges_on_device is not None
        return (
            state.constraint_features.to(self.device),
            *self._edges_on_device,
            state.variable_features.to(self.device),
        )

    def _leave_to_scip(self, cause: str, error: BaseException) -> dict[str, Any]:
        self._statistics.fallbacks[cause] += 1
        if cause in ("exception", "non-finite scores", "schema"):
            self.error = error if isinstance(error, Exception) else None
            if self.strict:
                raise error  # SCIP ends the solve with an error, and so does optimize()
        return {"result": SCIP_RESULT.DIDNOTRUN}


def include_branchrule(
    model: Model,
    policy: str | Path | Policy,
    *,
    priority: int = PRIORITY,
    max_depth: int = -1,
    time_share: float = 1.0,
    device: str | torch.device = "cpu",
    threads: int | None = None,
    strict: bool = False,
) -> NeuralBranchrule:
    """Let a policy branch in a model, and return the rule, whose `statistics` tell what it did.

    `policy` is a policy file, the name of a shipped policy, or any callable
    `policy(constraint_features, edge_index, edge_values, variable_features) -> scores` of all
    variables (or of the candidates, if it also takes `candidates`). Below `max_depth`, and while
    the rule's share of the solving time is above `time_share`, SCIP's own rules decide. `threads`
    are torch's during inference. A failing policy costs only its decision, which SCIP then takes;
    with `strict` it ends the solve with an exception instead.
    """
    if isinstance(policy, (str, Path)):
        policy = _load(policy, device)
    if model.getStage() not in (SCIP_STAGE.INIT, SCIP_STAGE.PROBLEM):
        raise InputError(
            "the model has been solved: include the rule before, or freeTransform() it"
        )
    if f"branching/{_NAME}/priority" in model.getParams():
        raise InputError("the model has a learned rule already: one policy branches in a model")
    rule = NeuralBranchrule(
        policy, time_share=time_share, device=device, threads=threads, strict=strict
    )
    model.includeBranchrule(
        rule,
        _NAME,
        "branches on the variable that a learned policy scores highest",
        priority,
        max_depth,
        1.0,
    )
    rule._let_go_of(model)
    return rule


def _load(policy: str | Path, device: str | torch.device) -> Policy:
    from learn2branch.policy import load_policy  # not needed for a policy that is a callable

    loaded = load_policy(policy)
    if _schema_of(loaded) != STATE.hash:
        raise InputError(
            f"the policy {policy} was made for the task {loaded.metadata['task']!r} and cannot "
            "branch: give one that `l2b train` made"
        )
    return loaded.to(device)


def _schema_of(policy: Policy) -> str | None:
    """Return the schema a policy was made for; None if it does not tell."""
    metadata = getattr(policy, "metadata", None)
    return metadata["schema"]["hash"] if isinstance(metadata, dict) else None


def _accepts_candidates(policy: Policy) -> bool:
    """Tell whether a policy has a parameter `candidates`; `**kwargs` alone promises nothing."""
    if isinstance(policy, torch.jit.ScriptModule):
        forward: Any = policy.forward
        return any(argument.name == "candidates" for argument in forward.schema.arguments)
    # A module's own signature is (*args, **kwargs), whatever its `forward` takes.
    called = policy.forward if isinstance(policy, torch.nn.Module) else policy
    try:
        return "candidates" in inspect.signature(called).parameters
    except (TypeError, ValueError):
        return False


@contextmanager
def _torch_threads(threads: int | None) -> Iterator[None]:
    if threads is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
