"""Solving one instance with a policy, and next to it with SCIP's default, for a practitioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.branching.findings import agree
from pipelines.branching.policies import SCIP_DEFAULT, Choice, find_choice
from pipelines.report.table import Table
from solver_plugins.solve import Solve, solve


@dataclass(frozen=True)
class Solves:
    """The solve that was asked for, and others it is compared with."""

    file: Path
    solves: tuple[tuple[str, Solve], ...]  # label and solve, the one asked for first

    @property
    def objective(self) -> float | None:
        """Of the best solution of the first solve."""
        return self.solves[0][1].objective

    @property
    def interrupted(self) -> bool:
        """Whether the user ended a solve."""
        return any(result.status == "userinterrupt" for _, result in self.solves)

    @property
    def disagree(self) -> bool:
        """Whether finished solves have different answers."""
        finished = [result for _, result in self.solves if result.finished]
        return any(not agree(finished[0], other) for other in finished[1:])

    def lines(self) -> list[str]:
        """Return the closing line, after a table if there is something to compare."""
        label, result = self.solves[0]
        closing = f"{self.file} with {label}: {_sentence(result)}"
        if len(self.solves) == 1:
            return [closing]
        rows = [
            [name, r.status, _objective(r), f"{r.nodes}", f"{r.fair_nodes}", f"{r.wall_time:.2f}",
             f"{r.deciding_share:.0%}"]
            for name, r in self.solves
        ]  # fmt: skip
        columns = ["policy", "status", "objective", "nodes", "fair nodes", "time (s)", "deciding"]
        return [Table(str(self.file), columns, rows, words=2).text(), "", closing]


def solve_file(
    file: Path | str,
    policy: str,
    *,
    compare: bool = False,
    log: bool = False,
    solution: Path | str | None = None,
    time_limit: float | None = None,
    parameters: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> Solves:
    """Solve a file with a policy named as in `--policy`; `compare` also with SCIP's default.

    SCIP is as it comes, apart from `parameters`; without a seed it is not permuted.
    """
    import torch

    torch.set_num_threads(1)
    choices = [find_choice(policy)]
    if compare and choices[0].rule != SCIP_DEFAULT:
        choices.append(Choice(SCIP_DEFAULT, rule=SCIP_DEFAULT))
    solves: list[tuple[str, Solve]] = []
    for choice in choices:
        result = solve(
            file,
            rule=choice.rule,
            policy=choice.file,
            protocol="default",
            seed=seed,
            time_limit=time_limit,
            parameters=parameters,
            log=log,
            solution=solution if not solves else None,
        )
        solves.append((choice.label, result))
        if result.status == "userinterrupt":
            break
    return Solves(Path(file), tuple(solves))


def _sentence(result: Solve) -> str:
    parts = [
        result.status,
        f"objective {_objective(result)}",
        f"{result.nodes} node{'s' if result.nodes != 1 else ''}",
        f"{result.wall_time:.2f} s",
    ]
    if not result.finished and result.gap is not None:
        parts.insert(2, f"gap {result.gap:.2%}")
    if result.decisions is not None:
        parts.append(
            f"{result.deciding_share:.0%} of it deciding ({result.decisions} decisions, "
            f"{result.fallbacks} left to SCIP)"
        )
    return ", ".join(parts)


def _objective(result: Solve) -> str:
    return "none" if result.objective is None else f"{result.objective:.10g}"
