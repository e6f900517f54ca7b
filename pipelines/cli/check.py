"""`l2b check`: what to know about instances before hours are spent on them."""

from __future__ import annotations

import click

from pipelines.cli import options
from pipelines.progress import say


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@options.instances
@click.option(
    "--time-limit",
    type=options.Duration(),
    default=30.0,
    show_default=True,
    help="To try each instance for.",
)
@options.jobs
@options.verbosity
def check(files: tuple[str, ...], instances: tuple[str, ...], time_limit: float, jobs: int) -> int:
    """Read instances, try them briefly, and tell what matters before learning from them.

    Says how large they are, what presolving leaves, whether SCIP branches at all, roughly how long
    a solve takes, and what would make learning pointless. FILE may be a file, a folder or a glob,
    as with --instances.

    \b
    Example:
      l2b check mine/*.mps.gz
      l2b check --instances data/setcover/tiny/test --time-limit 10 --jobs 2
    """
    from pipelines.check import check as run
    from pipelines.check import describe, summarise
    from solver_plugins.inspection import Inspection

    if not files and not instances:
        raise click.UsageError("Missing argument 'FILE...': which instances to check.")
    seen: list[Inspection] = []
    code = 0
    try:
        for found in run([*files, *instances], time_limit, jobs):
            if isinstance(found, Inspection):
                seen.append(found)
                click.echo(describe(found))
            else:
                click.echo(f"Error: {found}", err=True)
                code = 2
    except KeyboardInterrupt:
        say(f"stopped after {len(seen)} instances")
        code = 130
    if len(seen) > 1:
        click.echo(summarise(seen))
    return code
