"""`l2b samples`: what a store of samples holds."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import options


@click.group()
def samples() -> None:
    """Look into a store of collected samples."""


@samples.command()
@click.argument("folder", type=click.Path(path_type=Path), default="samples")
@click.option("--verify", is_flag=True, help="Read every sample of every shard.")
@options.verbosity
def info(folder: Path, verify: bool) -> int:
    """Show counts, sizes, candidates and the spread of the expert's scores.

    Exits with 1 if a shard cannot be trusted.

    \b
    Example:
      l2b samples info samples/setcover --verify
    """
    from pipelines.branching.stores import describe

    problems = 0
    for split in describe(folder, verify):
        click.echo("\n".join(split.lines()))
        problems += len(split.problems)
    return 1 if problems else 0
