"""`l2b instance`: is an instance feasible, and what is its optimal value?"""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import options

DATASETS = ("unfoldable", "foldable")
TASKS = ("feasibility", "objective")
RANDOM = ("none", "instance", "redrawn", "position")

data = click.option(
    "--data",
    type=click.Path(path_type=Path),
    default="data/instance",
    show_default=True,
    help="Folder of the sets.",
)


@click.group()
def instance() -> None:
    """Predict a property of small instances: feasibility or optimal value.

    \b
    From nothing to a table:
      l2b instance generate
      l2b instance train --dataset foldable --task feasibility --epochs 200
      l2b instance evaluate
    """


@instance.command()
@click.option(
    "--dataset",
    "datasets",
    type=click.Choice(DATASETS),
    multiple=True,
    default=DATASETS,
    show_default=True,
    help="Which set; repeat for both.",
)
@click.option("--variables", type=int, default=20, show_default=True, help="Of each instance.")
@click.option("--constraints", type=int, default=6, show_default=True, help="Of each instance.")
@click.option(
    "--nonzeros", type=int, help="Of each unfoldable instance; half of the matrix if left out."
)
@click.option(
    "--count",
    type=click.IntRange(min=2),
    default=2000,
    show_default=True,
    help="Instances a set; the first half is for training, the second for testing.",
)
@options.seed
@options.jobs
@options.out("data/instance")
@options.verbosity
def generate(
    datasets: tuple[str, ...],
    variables: int,
    constraints: int,
    nonzeros: int | None,
    count: int,
    seed: int,
    jobs: int,
    out: Path,
) -> None:
    """Make sets of small instances and label them by SCIP.

    "unfoldable" instances are random; "foldable" ones come in pairs that colour refinement cannot
    tell apart, the first feasible, the second not.

    \b
    Example:
      l2b instance generate --dataset unfoldable --variables 30 --nonzeros 100 --seed 1
      writes data/instance/unfoldable.npz.
    """
    from pipelines.instance_level.data import Recipe, load
    from pipelines.instance_level.data import generate as run

    recipes = [
        Recipe(dataset, count, seed, variables, constraints, nonzeros).checked()
        for dataset in datasets
    ]
    for recipe in recipes:
        path = run(recipe, jobs=jobs, out=out)
        labelled = load(path)
        with_value = labelled.feasible & labelled.bounded
        click.echo(f"{path}: {recipe}")
        for half in ("train", "test"):
            which = labelled.half(half)
            click.echo(
                f"  {half}: {len(which)} instances, {labelled.feasible[which].sum()} feasible, "
                f"{with_value[which].sum()} of them bounded, with an optimal value"
            )


@instance.command()
@click.option(
    "--dataset",
    type=click.Choice(DATASETS),
    default="unfoldable",
    show_default=True,
    help="Which set.",
)
@click.option(
    "--task",
    type=click.Choice(TASKS),
    default="feasibility",
    show_default=True,
    help="What to predict.",
)
@options.model
@options.size
@click.option("--layers", type=click.IntRange(min=1), help="Of the model, if not as its size has.")
@click.option(
    "--random",
    type=click.Choice(RANDOM),
    help="The random feature: none, fixed for each instance, redrawn whenever one is seen, or the "
    "same at each position of all.  [default: instance on foldable, else none]",
)
@click.option(
    "--epochs",
    type=click.IntRange(min=1),
    help="At most; it ends once the training half is solved.  [default: 10000 and 12000]",
)
@click.option("--batch-size", type=click.IntRange(min=1), default=64, show_default=True)
@click.option(
    "--lr", type=float, help="Learning rate.  [default: 8e-4 for dualattn, 3e-4 for bgnn]"
)
@options.budget
@click.option("--device", default="cpu", show_default=True, help="Where to compute.")
@options.seed
@data
@click.option("--out", type=click.Path(path_type=Path), help="Run folder; under runs/ if left out.")
@options.verbosity
def train(
    dataset: str,
    task: str,
    model: str,
    size: str,
    layers: int | None,
    random: str | None,
    epochs: int | None,
    batch_size: int,
    lr: float | None,
    budget_seconds: float | None,
    device: str,
    seed: int,
    data: Path,
    out: Path | None,
) -> None:
    """Train a model on the first half of a set; a run that was stopped goes on.

    \b
    Example:
      l2b instance train --dataset foldable --task feasibility --model bgnn --epochs 500
      writes runs/instance-foldable-feasibility-bgnn-instance-0/policy.pt.
    """
    from learn2branch.training import Progress
    from pipelines.instance_level.train import train as run
    from pipelines.progress import track

    with track(f"Training {model}") as progress:

        def report(now: Progress) -> None:
            figures = ", ".join(f"{name} {value:.4g}" for name, value in now.metrics.items())
            progress.advance(note=f"{figures}, {now.examples_per_second:.0f} graphs/s")

        folder, result = run(
            dataset,
            task,
            backbone=model,
            size=size,
            layers=layers,
            random=random,
            epochs=epochs,
            batch_size=batch_size,
            lr=lr,
            seed=seed,
            budget_seconds=budget_seconds,
            device=device,
            data=data,
            out=out,
            report=report,
        )
    figures = ", ".join(
        f"{name} {value:.4g}" for name, value in result.best.items() if name != "epoch"
    )
    click.echo(f"{folder}: {figures} on the training half ({result.stopped})")


@instance.command()
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path))
@data
@options.out("results/instance", "Folder for results.csv.")
@options.verbosity
def evaluate(runs: tuple[Path, ...], data: Path, out: Path) -> None:
    """Judge trained RUNS on both halves, as a table; all runs/instance-* if none is named.

    \b
    Example:
      l2b instance evaluate runs/instance-foldable-*
      prints a Markdown table and writes results/instance/results.csv.
    """
    from learn2branch.errors import InputError
    from pipelines.instance_level.evaluate import evaluate as run
    from pipelines.instance_level.evaluate import table
    from pipelines.progress import say

    found = runs or tuple(path.parent for path in sorted(Path("runs").glob("instance-*/policy.pt")))
    if not found:
        raise InputError("there is no runs/instance-*: train one with `l2b instance train`")
    path, rows = run(found, data=data, out=out)
    click.echo(table(rows))
    say(f"written to {path}")


@instance.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of the random feature, for models that have one.",
)
@options.verbosity
@click.pass_context
def predict(ctx: click.Context, model: Path, files: tuple[Path, ...], seed: int) -> None:
    """Say of each of your FILES (.lp, .mps, .cip) what a trained MODEL expects.

    A file that the model was not made for is refused by name, and the exit code is then 2.

    \b
    Example:
      l2b instance predict runs/instance-unfoldable-objective-dualattn-none-0 mine.mps
      mine.mps: optimal value -0.512
    """
    from pipelines.instance_level.predict import predict as run

    refused = False
    for answer in run(model / "policy.pt" if model.is_dir() else model, files, seed=seed):
        if answer.refusal is not None:
            refused = True
            click.echo(f"Error: {answer.path}: {answer.refusal}", err=True)
        elif answer.task == "feasibility":
            verdict = "feasible" if answer.value > 0.5 else "infeasible"
            click.echo(f"{answer.path}: {verdict} (probability of feasible {answer.value:.3f})")
        else:
            click.echo(f"{answer.path}: optimal value {answer.value:.6g}")
    if refused:
        ctx.exit(2)
