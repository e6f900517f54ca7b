"""`l2b models`: the policies that come with the package."""

from __future__ import annotations

import click

from pipelines.cli import options


@click.command()
@click.argument("name", required=False)
@options.verbosity
def models(name: str | None) -> None:
    """List the shipped policies, or tell all about one (or about a policy.pt).

    \b
    Example:
      l2b models
      l2b models setcover
    """
    import json

    from pipelines.branching.models import describe_policy, model_table

    if name is not None:
        click.echo(json.dumps(describe_policy(name), indent=2, ensure_ascii=False))
        return
    table = model_table()
    if not table.rows:
        click.echo("This version ships no policies; l2b train makes one.")
        return
    click.echo(table.text())
