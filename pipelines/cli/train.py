"""`l2b train`: a branching policy from collected samples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from pipelines.cli import options


@click.command()
@options.problem
@options.instances
@click.option(
    "--samples",
    type=click.Path(path_type=Path),
    help="Folder of a collection.  [default: that of --problem or --instances, or the newest "
    "under samples/]",
)
@options.model
@options.size
@click.option("--epochs", type=click.IntRange(min=1), help="At most.  [default: 1000]")
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples a step.  [default: 64]")
@click.option(
    "--lr", type=click.FloatRange(min=0, min_open=True), help="Rate of Adam.  [default: 0.001]"
)
@options.budget
@click.option(
    "--soft-targets",
    type=click.FloatRange(min=0),
    default=0.0,
    show_default=True,
    metavar="TEMPERATURE",
    help="Train towards all good candidates by the expert's scores; 0 for its choice alone.",
)
@click.option(
    "--start",
    metavar="NAME_OR_FILE",
    help="Begin with the weights of a shipped policy (setcover, setcover-bgnn, …) or of a "
    "policy.pt; its backbone and size stay.",
)
@click.option("--seed", type=click.IntRange(min=0), help="Of all that is random.  [default: 0]")
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
    "--out",
    type=click.Path(path_type=Path),
    help="Run folder; goes on with it if there is one.  [default: runs/COLLECTION-MODEL, or "
    "…-MODEL-small]",
)
@options.verbosity
def train(
    problem: str | None,
    instances: tuple[str, ...],
    samples: Path | None,
    model: str,
    size: str,
    soft_targets: float,
    start: str | None,
    device: str | None,
    workers: int | None,
    config_file: Path | None,
    out: Path | None,
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
    if not (samples or problem or instances) and data.get("samples"):
        samples = Path(data["samples"])
    trained = train_policy(
        problem,
        samples,
        instances=instances,
        model=model if given("model") else data.get("model"),
        size=size if given("size") else data.get("size"),
        soft_targets=soft_targets
        if given("soft_targets")
        else data.get("soft_targets", soft_targets),
        start=start or data.get("start", ""),
        training=TrainingConfig.from_dict(training),
        workers=workers,
        run=out,
    )
    if int(os.environ.get("RANK", "0")) != 0:
        return
    for line in show(trained):
        click.echo(line)
    click.echo(
        f"{trained.policy}: {trained.epochs} epochs in {trained.seconds:.0f} s "
        f"(ended by: {trained.stopped}), {trained.examples_per_second:.1f} samples/s, "
        f"waited for data {100 * trained.waiting_share:.1f} % of the time"
    )
