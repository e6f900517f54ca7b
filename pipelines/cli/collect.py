"""`l2b collect`: samples of what the expert does, from episodes over many instances."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import options


@click.command()
@options.problem
@options.instances
@click.option(
    "--preset",
    type=click.Choice(options.PRESETS),
    default="small",
    show_default=True,
    help="How much: tiny (180 samples), small (5,000; most families: under an hour on two cores), "
    "paper (100,000).",
)
@click.option(
    "--split",
    type=click.Choice(("train", "valid", "test")),
    multiple=True,
    help="Which split; repeat for several. All three if left out.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Samples of the train split; valid and test get a fifth each.  [default: the preset's]",
)
@click.option(
    "--expert-prob",
    type=click.FloatRange(0, 1, min_open=True),
    help="Chance that a node is asked of the expert and recorded.  [default: the preset's]",
)
@click.option(
    "--time-limit",
    type=options.Duration(least=1),
    default=3600.0,
    show_default=True,
    help="Of an episode; a net for bad cases: one that meets it depends on the machine.",
)
@options.protocol
@options.parameters
@options.seed
@click.option(
    "--first-episode",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Begin where another collection ended: the same seed, other instances.",
)
@options.jobs
@options.out("samples")
@click.option("--name", help="Folder under --out.  [default: the family, or 'own']")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    default="data",
    show_default=True,
    help="Where a family's instances are, and missing ones are made.",
)
@click.option(
    "--backend",
    type=click.Choice(("scip", "ecole")),
    default="scip",
    show_default=True,
    help="What runs the episodes; ecole only where it is installed.",
)
@click.option(
    "--parallel",
    "parallel_backend",
    type=click.Choice(("loky", "dask", "ray")),
    default="loky",
    show_default=True,
    help="Processes of this machine, or of a cluster that shares this folder.",
)
@click.option("--cluster", help="Its address: tcp://host:8786 (dask), host:6379 (ray).")
@options.verbosity
def collect(
    problem: str | None,
    instances: tuple[str, ...],
    preset: str,
    split: tuple[str, ...],
    samples: int | None,
    expert_prob: float | None,
    time_limit: float,
    protocol: str,
    parameters: dict[str, str],
    seed: int,
    first_episode: int,
    jobs: int,
    out: Path,
    name: str | None,
    data: Path,
    backend: str,
    parallel_backend: str,
    cluster: str | None,
) -> None:
    """Collect samples of the expert (strong branching) for training.

    The store depends on the seed and the settings, not on --jobs or interruptions: stop it any
    time, and the same command goes on. Instances of a family that are missing are made.

    \b
    Example:
      l2b collect --problem setcover --preset tiny
      writes samples/setcover/train/episode-000000.npz … and the splits valid and test.
    """
    from pipelines.branching.collect import collect as run
    from pipelines.branching.episodes import SPLITS

    store, summaries = run(
        problem,
        instances,
        preset=preset,
        splits=split or SPLITS,
        samples=samples,
        expert_probability=expert_prob,
        time_limit=time_limit,
        protocol=protocol,
        parameters=parameters,
        seed=seed,
        first_episode=first_episode,
        jobs=jobs,
        out=out,
        name=name,
        data=data,
        backend=backend,
        parallel_backend=parallel_backend,
        cluster=cluster,
    )
    for name_of_split, summary in summaries.items():
        size = summary.bytes / max(summary.samples, 1) / 1024
        click.echo(
            f"{store / name_of_split}: {summary.samples} samples of {summary.episodes} episodes, "
            f"{size:.1f} KiB each"
        )
        for instance in summary.out_of_time:
            click.echo(f"  met the time limit: {instance}")
        for instance, error in summary.failed.items():
            click.echo(f"  failed: {instance}: {error}")
