"""`l2b train`: a branching policy from collected samples."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from pipelines.cli import options

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):
    """A time as people write it: 90s, 45m, 1.5h, 1h30m, or plain seconds."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"'{value}' is not a time such as 90s, 45m or 1h30m", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
        if seconds <= 0:
            self.fail("a budget must be more than nothing", param, ctx)
        return seconds


@click.command()
@options.problem
@click.option(
    "--samples",
    type=click.Path(path_type=Path),
    help="Folder of a collection.  [default: that of --problem, or the newest under samples/]",
)
@click.option(
    "--model",
    type=click.Choice(("dualattn", "bgnn")),
    default="dualattn",
    show_default=True,
    help="The backbone.",
)
@click.option(
    "--size",
    type=click.Choice(("full", "small")),
    default="full",
    show_default=True,
    help="Of the backbone.",
)
@click.option("--epochs", type=click.IntRange(min=1), help="At most.  [default: 1000]")
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples a step.  [default: 64]")
@click.option(
    "--lr", type=click.FloatRange(min=0, min_open=True), help="Rate of Adam.  [default: 0.001]"
)
@click.option(
    "--budget",
    "budget_seconds",
    type=Duration(),
    help="Time to train, e.g. 45m; towards its end the rate falls to zero.",
)
@click.option(
    "--soft-targets",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="TEMPERATURE",
    help="Train towards all good candidates by the expert's scores; 0 for its choice alone.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Everything follows.  [default: 0]")
@click.option("--device", help="cpu, cuda, …  [default: cuda where there is one]")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that share each batch.  [default: all cores, 1 on a GPU]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="A run's config.toml to take the settings from; options given here win.",
)
@click.option(
    "--run",
    type=click.Path(path_type=Path),
    help="Run folder; goes on with it if there is one.  [default: runs/COLLECTION-MODEL]",
)
@options.verbosity
def train(
    problem: str | None,
    samples: Path | None,
    model: str,
    size: str,
    soft_targets: float,
    device: str | None,
    workers: int | None,
    config_file: Path | None,
    run: Path | None,
    **changes: Any,
) -> None:
    """Train a branching policy on collected samples.

    Ends with the accuracy on the test samples beside that of simple rules, and policy.pt. Stop it
    any time: the same command goes on.

    \b
    Example:
      l2b train --problem setcover --model dualattn --budget 45m
      writes runs/setcover-dualattn/policy.pt
    """
    import torch

    from learn2branch.runs import read_toml
    from learn2branch.training import TrainingConfig
    from pipelines.branching.train import show
    from pipelines.branching.train import train as train_policy

    context = click.get_current_context()

    def given(name: str) -> bool:
        return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    table: dict[str, Any] = read_toml(config_file) if config_file else {}
    data, training = table.get("data", {}), dict(table.get("training", {}))
    training.update({name: value for name, value in changes.items() if value is not None})
    if device or "device" not in training:
        training["device"] = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if workers is None:
        workers = 1 if training["device"] != "cpu" else os.cpu_count() or 1
    if not samples and not problem and data.get("samples"):
        samples = Path(data["samples"])
    trained = train_policy(
        problem,
        samples,
        model=model if given("model") else data.get("model", model),
        size=size if given("size") else data.get("size", size),
        soft_targets=soft_targets
        if given("soft_targets")
        else data.get("soft_targets", soft_targets),
        training=TrainingConfig.from_dict(training),
        workers=workers,
        run=run,
    )
    if int(os.environ.get("RANK", "0")) != 0:
        return
    for line in show(trained):
        click.echo(line)
    click.echo(
        f"{trained.policy}: {trained.epochs} epochs, {trained.seconds:.0f} s ({trained.stopped}), "
        f"{trained.examples_per_second:.1f} samples/s, "
        f"waited for data {100 * trained.waiting_share:.1f} % of the time"
    )
