"""`l2b report`: tables and a page from results that are there."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import options


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--baseline", metavar="POLICY", help="What differences are taken against; relpscost if run."
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(("latex", "markdown", "csv")),
    help="Print the tables in this format, for a paper, and write no page.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page.  [default: report.html in the folder; with several folders, here]",
)
@click.option(
    "--picture",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw all policies against the baseline into this .svg, .png or .pdf.",
)
@options.verbosity
def report(
    folders: tuple[Path, ...],
    baseline: str | None,
    file_format: str | None,
    out: Path | None,
    picture: Path | None,
) -> int:
    """Report results again, of one folder or of several side by side.

    Needs only each folder's results.csv. A policy that several folders ran is told apart by the
    folder's name.

    \b
    Example:
      l2b report results/setcover-paper results/cauctions-paper --out both.html
      l2b report results/setcover-paper --format latex > table.tex
    """
    from pipelines.branching.report import FILE, read_report

    made = read_report(folders, baseline)
    for sentence in made.disagreements:
        click.echo(f"Error: wrong results, finished solves disagree on {sentence}", err=True)
    if file_format is not None:
        click.echo("\n\n".join(table.format(file_format) for table in made.tables()))
    else:
        folder = folders[0] if folders[0].is_dir() else folders[0].parent
        path = out or (folder / FILE if len(folders) == 1 else Path(FILE))
        click.echo(made.text())
        click.echo(f"\n{made.write(path)} has the pictures")
    if picture is not None:
        made.picture().write(picture)
        click.echo(f"{picture} is drawn", err=True)
    return 1 if made.disagreements else 0
