"""`l2b solve`: one instance, one policy."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import options


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--policy",
    metavar="NAME_OR_FILE",
    required=True,
    help="A policy.pt, a run, the name of a shipped policy (l2b models), or one of SCIP's rules "
    "(relpscost, pscost, …).",
)
@click.option("--compare", is_flag=True, help="Also solve with SCIP's default, and show both.")
@click.option("--log", is_flag=True, help="Show SCIP's log.")
@click.option(
    "--solution",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    help="Write the best solution to this file.",
)
@click.option(
    "--time-limit", type=options.Duration(zero=True), help="Of the clock; none if left out."
)
@options.parameters
@click.option("--seed", type=click.IntRange(min=0), help="Permute and seed SCIP; not if left out.")
@options.verbosity
def solve(
    file: Path,
    policy: str,
    compare: bool,
    log: bool,
    solution: Path | None,
    time_limit: float | None,
    parameters: dict[str, str],
    seed: int | None,
) -> int:
    """Solve an instance with a policy that decides where SCIP branches.

    SCIP is otherwise as it comes, and its answer is as exact as ever.

    \b
    Example:
      l2b solve mine.mps --policy runs/mine/policy.pt --set limits/time=60 --solution mine.sol
      mine.mps with mine: optimal, objective 1234, 57 nodes, 3.21 s, 21 % of it deciding …
    """
    from pipelines.branching.solve import solve_file

    solves = solve_file(
        file,
        policy,
        compare=compare,
        log=log,
        solution=solution,
        time_limit=time_limit,
        parameters=parameters,
        seed=seed,
    )
    for line in solves.lines():
        click.echo(line)
    if solution is not None and solves.objective is None:
        click.echo(f"Note: no solution was found, so {solution} was not written", err=True)
    if solves.interrupted:
        return 130
    if solves.disagree:
        click.echo("Error: wrong results, the two solves disagree on the optimum", err=True)
        return 1
    return 0
