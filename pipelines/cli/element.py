"""`l2b element`: predict the values of binary variables, and search near the prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipelines.cli import options
from pipelines.cli.options import PRESETS

SOLVERS = ("scip", "highs", "gurobi")

_preset = click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="small",
    show_default=True,
    help="tiny (a minute), small (an hour of two cores a family), paper (as published).",
)
_solver = click.option(
    "--solver", type=click.Choice(SOLVERS), default="scip", show_default=True, help="Who solves."
)
_time_limit = click.option(
    "--time-limit", type=options.Duration(),
    help="Wall time for each instance. The preset's if left out.",
)  # fmt: skip
_labels = click.option(
    "--labels", type=click.Path(path_type=Path), default="labels", show_default=True,
    help="Folder with collected labels.",
)  # fmt: skip
_data = click.option(
    "--data", type=click.Path(path_type=Path), default="data/element", show_default=True,
    help="Folder with generated instances.",
)  # fmt: skip


def _region_options(command: Any) -> Any:
    sizes = (
        ("--k0", "How many of the lowest predictions to hold at 0."),
        ("--k1", "How many of the highest predictions to hold at 1."),
        ("--delta", "How many of those may flip."),
    )
    for name, text in reversed(sizes):
        command = click.option(
            name,
            type=click.FloatRange(min=0),
            metavar="SHARE_OR_NUMBER",
            help=f"{text} Below 1 a share of the binaries.",
        )(command)
    return command


def _region(k0: float | None, k1: float | None, delta: float | None) -> Any:
    from solver_plugins.primal import TrustRegion

    given = [value for value in (k0, k1, delta) if value is not None]
    if not given:
        return None
    if len(given) < 3:
        raise click.UsageError("--k0, --k1 and --delta belong together: give all three or none.")
    return TrustRegion(*given)


@click.group()
def element() -> None:
    """Predict the values of binary variables, and search near the prediction.

    \b
    From nothing to a report, in a minute or two:
      l2b element collect --problem cauctions --preset tiny
      l2b element train --problem cauctions --preset tiny
      l2b element evaluate --problem cauctions --preset tiny
    """


@element.command()
@options.problem
@options.instances
@_preset
@options.split
@options.count
@options.seed
@_time_limit
@click.option("--pool", type=click.IntRange(min=1), help="Solutions to keep for each instance.")
@_solver
@click.option(
    "--position/--no-position", default=None,
    help="Number the variables in the features; otherwise only for placement.",
)  # fmt: skip
@options.jobs
@options.out("labels")
@_data
@options.verbosity
def collect(
    problem: str | None,
    instances: tuple[str, ...],
    preset: str,
    split: tuple[str, ...],
    count: int | None,
    seed: int,
    time_limit: float | None,
    pool: int | None,
    solver: str,
    position: bool | None,
    jobs: int,
    out: Path,
    data: Path,
) -> None:
    """Solve training instances for a while and keep pools of good solutions.

    Stopped and started again, it goes on with the instances that are missing.

    \b
    Example:
      l2b element collect --problem indset --preset small --jobs 2
      writes labels/indset/small/train/instance_0001.npz …
    """
    from pipelines.element_level.collect import collect as run

    files = run(
        problem,
        instances,
        preset=preset,
        splits=split or ("train", "valid"),
        count=count,
        seed=seed,
        time_limit=time_limit,
        pool_size=pool,
        solver=solver,
        position=position,
        jobs=jobs,
        out=out,
        data=data,
    )
    folder = out / problem / preset if problem else out
    click.echo(f"{len(files)} instances with labels in {folder}")


@element.command()
@options.problem
@options.instances
@_preset
@options.model
@click.option("--size", type=click.Choice(("full", "small")), help="Of the backbone.")
@options.seed
@click.option("--epochs", type=click.IntRange(min=1), help="At most.")
@click.option("--batch-size", type=click.IntRange(min=1), help="Instances a step.")
@click.option("--lr", type=click.FloatRange(min=0, min_open=True), help="Learning rate.")
@options.budget
@_labels
@click.option("--device", default="cpu", show_default=True, help="Of torch.")
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="Run folder. runs/element-FAMILY-PRESET-MODEL-seedN if left out.",
)  # fmt: skip
@options.verbosity
def train(problem: str | None, model: str, **arguments: Any) -> None:
    """Train a model to predict binary variables.

    \b
    Example:
      l2b element train --problem indset --preset small --model bgnn --seed 1
      writes runs/element-indset-small-bgnn-seed1/policy.pt
    """
    from pipelines.element_level.train import train as run

    folder, result = run(problem, backbone=model, **arguments)
    click.echo(
        f"{folder / 'policy.pt'}: validation loss {result.best['loss']:.4f}, error rate "
        f"{100 * result.best['error_rate']:.2f} %, after {result.epochs} epochs "
        f"({result.stopped}, {result.seconds:.0f} s)"
    )


@element.command()
@options.problem
@options.instances
@_preset
@click.option(
    "--model", "models", multiple=True, metavar="RUN",
    help="A run folder or policy.pt; repeat for several. All of the family if left out.",
)  # fmt: skip
@click.option(
    "--method", "methods", multiple=True, type=click.Choice(("solver", "pas", "apollo")),
    help="Repeat for several. All three if left out.",
)  # fmt: skip
@options.count
@click.option(
    "--seeds", type=click.IntRange(min=1), default=1, show_default=True, help="Of the solver."
)
@_time_limit
@click.option(
    "--reference-seconds", type=options.Duration(),
    help="For the longer run of the solver that the others are compared with.",
)  # fmt: skip
@_solver
@_region_options
@options.jobs
@click.option(
    "--out", type=click.Path(path_type=Path),
    help="Folder for results. results/element-FAMILY-PRESET or results/element-own if left out.",
)  # fmt: skip
@_labels
@_data
@click.option(
    "--runs", type=click.Path(path_type=Path), default="runs", show_default=True,
    help="Folder in which runs of the family are looked for.",
)  # fmt: skip
@options.verbosity
def evaluate(
    problem: str | None,
    instances: tuple[str, ...],
    models: tuple[str, ...],
    methods: tuple[str, ...],
    k0: float | None,
    k1: float | None,
    delta: float | None,
    **arguments: Any,
) -> None:
    """Compare the solver alone with Predict-and-Search and Apollo, and write a report.

    Stopped and started again, it goes on with the searches that are missing.

    \b
    Example:
      l2b element evaluate --problem indset --preset small --jobs 2
      writes results/element-indset-small/results.csv and report.html
    """
    from pipelines.element_level.evaluate import evaluate as run
    from pipelines.element_level.presets import METHODS

    region = _region(k0, k1, delta)
    folder, _ = run(
        problem, instances, models, methods=methods or METHODS, region=region, **arguments
    )
    _show_report(folder)


def _show_report(folder: Path) -> Any:
    """Print the tables of an evaluation, write its page, and return its searches."""
    from pipelines.element_level.report import FILE, read_report

    made = read_report(folder)
    for table in made.tables():
        click.echo(table.text() + "\n")
    click.echo(made.write(folder / FILE))
    return made.searches


@element.command()
@click.argument(
    "folders", nargs=-1, required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False),
    help="Also draw the mean gaps over time, a panel a folder, into this .svg, .png or .pdf.",
)  # fmt: skip
@options.verbosity
def report(folders: tuple[Path, ...], picture: Path | None) -> None:
    """Report evaluations again, each from what is in its folder.

    \b
    Example:
      l2b element report results/element-indset-small results/element-cauctions-small
      prints their tables and writes a report.html into each
    """
    from pipelines.element_level.pictures import gap_curves

    panels = [(folder.name, _show_report(folder)) for folder in folders]
    if picture is not None:
        gap_curves(panels).write(picture)
        click.echo(f"{picture} is drawn", err=True)


@element.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", metavar="RUN", help="A run folder or policy.pt.")
@click.option(
    "--method", type=click.Choice(("solver", "pas", "apollo")), default="apollo",
    show_default=True, help="How to search.",
)  # fmt: skip
@click.option(
    "--time-limit", type=options.Duration(), default=60.0,
    show_default=True, help="Wall time, prediction included.",
)  # fmt: skip
@_solver
@_region_options
@options.seed
@click.option("--out", type=click.Path(path_type=Path), help="File for the best solution.")
@options.verbosity
def search(
    file: Path,
    model: str | None,
    method: str,
    time_limit: float,
    solver: str,
    k0: float | None,
    k1: float | None,
    delta: float | None,
    seed: int,
    out: Path | None,
) -> None:
    """Search one instance for good solutions, showing them as they are found.

    Ctrl-C ends the search and keeps the best solution.

    \b
    Example:
      l2b element search mine.lp --model runs/element-indset-small-dualattn-seed0 --out mine.sol
    """
    from pipelines.element_level.search import search_file

    result = search_file(
        file,
        model,
        method=method,
        time_limit=time_limit,
        solver=solver,
        region=_region(k0, k1, delta),
        seed=seed,
        solution=out,
    )
    best = result.best
    found = "no solution" if best is None else f"objective {best.objective:.10g}"
    click.echo(f"{found}, {result.status}, {result.seconds:.1f} s")
