"""`l2b check`: what to know about instances before hours are spent on them."""

from __future__ import annotations

import click

from pipelines.cli import options


@click.command()
@click.argument("files", metavar="[FILE]...", nargs=-1)
@options.instances
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds to try each instance for.",
)
@options.jobs
@options.verbosity
def check(files: tuple[str, ...], instances: tuple[str, ...], time_limit: float, jobs: int) -> None:
    """Read instances, try them briefly, and tell what matters before learning from them.

    Says how large they are, what presolving leaves, whether SCIP branches at all, roughly how long
    a solve takes, and what would make learning pointless. FILE may be a file, a folder or a glob,
    as with --instances.

    \b
    Example:
      l2b check mine/*.mps.gz
      l2b check --instances data/setcover/tiny/test --time-limit 10 --jobs 2
    """
    from learn2branch.errors import InputError
    from pipelines.check import check as run
    from pipelines.check import describe, summarise

    if not files and not instances:
        raise click.UsageError("Missing argument 'FILE...': which instances to check.")
    seen, failed = run([*files, *instances], time_limit, jobs)
    for inspection in seen:
        click.echo(describe(inspection))
    if len(seen) > 1:
        click.echo(summarise(seen))
    if failed:
        others = f" (and {len(failed) - 1} more could not be checked)" if failed[1:] else ""
        raise InputError(failed[0] + others)
