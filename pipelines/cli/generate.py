"""`l2b generate`: instances of a problem family."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from pipelines.cli import options


@click.command()
@options.problem
@click.option(
    "--preset",
    type=click.Choice((*options.PRESETS, "element")),
    default="paper",
    show_default=True,
    help="Sizes: tiny (seconds), small, paper (as published), element (indset and cauctions).",
)
@options.split
@options.count
@options.seed
@options.jobs
@options.out("data")
@click.option(
    "--set",
    "changes",
    metavar="NAME=VALUE",
    multiple=True,
    callback=options.read_settings,
    help="Change one of the family's parameters, e.g. nodes=800; repeat for several.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(("lp", "mps", "mps.gz")),
    default="lp",
    show_default=True,
    help="Format of the files.",
)
@options.verbosity
def generate(
    problem: str | None,
    preset: str,
    split: tuple[str, ...],
    count: int | None,
    seed: int,
    jobs: int,
    out: Path,
    changes: dict[str, str],
    file_format: str,
) -> None:
    """Generate instances of a problem family.

    Instance k of a family, preset, split and seed is the same whatever the count, the order and
    the number of processes; what is there already is not made again.

    \b
    Example:
      l2b generate --problem setcover --preset paper --split test --count 40 --seed 0 --jobs 2
      writes data/setcover/paper/test/instance_0001.lp … and manifest.json beside them.
    """
    from pipelines.generate import generate as run

    if problem is None:
        raise click.UsageError("Missing option '--problem': which family to generate.")
    paths = run(
        problem, preset, split, count, seed, jobs, out, parameters=changes, file_format=file_format
    )
    for folder, files in Counter(path.parent for path in paths).items():
        click.echo(f"{folder}: {files} instance{'s' if files > 1 else ''}")
