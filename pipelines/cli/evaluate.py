"""`l2b evaluate`: solve with several policies, and say what came out."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from pipelines.cli import options


@click.command()
@options.problem
@options.instances
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME_OR_FILE",
    help="Who branches; repeat for several: dualattn, dualattn-small, bgnn (the family's newest "
    "run, else the shipped policy), a policy.pt, or one of SCIP's rules (relpscost, "
    "vanillafullstrong, fullstrong, pscost, mostinf, random, …). Default: dualattn, the others "
    "where there is one, and relpscost.",
)
@options.preset
@options.split
@options.count
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="How many seeds of SCIP: 0, 1, …",
)
@click.option(
    "--time-limit",
    type=options.Duration(),
    default=3600.0,
    show_default=True,
    help="Of a solve, by the clock.",
)
@click.option("--nodes", type=click.IntRange(min=1), help="Node limit a solve; none if left out.")
@options.protocol
@options.parameters
@click.option(
    "--baseline", metavar="POLICY", help="What differences are taken against; relpscost if run."
)
@options.jobs
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of results.csv and report.html.  [default: results/FAMILY-PRESET, or results/own]",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default="data",
    show_default=True,
    help="Folder of generated instances; what is missing there is generated.",
)
@options.verbosity
def evaluate(
    problem: str | None,
    instances: tuple[str, ...],
    policies: tuple[str, ...],
    preset: str,
    split: tuple[str, ...],
    count: int | None,
    seeds: int,
    time_limit: float,
    nodes: int | None,
    protocol: str,
    parameters: dict[str, str],
    baseline: str | None,
    jobs: int,
    out: Path | None,
    data: Path,
) -> int:
    """Solve instances with several policies and seeds, and compare them.

    Takes a family's test and transfer instances (by default of the family trained last), or your
    own. Writes a row a solve to results.csv as it comes; the same command again runs only what is
    missing. Prints the tables and writes report.html. Ends with code 1 if finished solves disagree
    on an optimum, or one gave no answer at all.

    \b
    Example:
      l2b evaluate --problem setcover --preset tiny --seeds 2 --policy dualattn --policy relpscost
      writes results/setcover-tiny/results.csv and report.html, and prints who needed how much.
    """
    from pipelines.branching.evaluate import evaluate as run
    from pipelines.branching.report import FILE, make_report

    path, rows = run(
        problem,
        instances,
        policies,
        preset=preset,
        splits=split,
        count=count,
        seeds=seeds,
        time_limit=time_limit,
        node_limit=nodes,
        protocol=protocol,
        parameters=parameters,
        baseline=baseline,
        jobs=jobs,
        out=out,
        data=data,
        command=shlex.join(["l2b", *sys.argv[1:]]),
    )
    report = make_report(rows, baseline)
    for sentence in report.disagreements:
        click.echo(f"Error: wrong results, finished solves disagree on {sentence}", err=True)
    click.echo(report.text())
    click.echo(f"\n{report.write(path.parent / FILE)} has the pictures; the rows are in {path}")
    return 1 if report.disagreements or any(row.solve is None for row in rows) else 0
