"""Tables of trained models: both halves, means over seeds, beside the simplest guess."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from learn2branch import load_model, load_policy
from learn2branch.errors import InputError
from learn2branch.runs import replace_file
from learn2branch.training import evaluate as mean_figures
from pipelines.instance_level.data import Recipe, load
from pipelines.instance_level.tasks import task_named

# (dataset, task, backbone) -> what the paper reports, as an error rate or a mean squared error
PAPER = {
    ("unfoldable", "feasibility", "dualattn"): 0.0,
    ("unfoldable", "feasibility", "bgnn"): 0.0,
    ("foldable", "feasibility", "dualattn"): 0.0,
    ("foldable", "feasibility", "bgnn"): 0.06,
    ("unfoldable", "objective", "dualattn"): 3.889e-14,
    ("unfoldable", "objective", "bgnn"): 3.975e-09,
    ("foldable", "objective", "dualattn"): 2.312e-13,
    ("foldable", "objective", "bgnn"): 1.178e-11,
}


@dataclass(frozen=True)
class Row:
    """The figures of one run, as `results.csv` has them: error rates, or mean squared errors."""

    dataset: str
    task: str
    backbone: str
    size: str  # layers x width
    random: str
    seed: int
    epochs: int
    seconds: float
    stopped: str
    train_instances: int
    test_instances: int
    train: float
    test: float
    test_renumbered: float  # the same test instances, variables and constraints renumbered
    train_baseline: float  # of the majority class or mean value of the training half
    test_baseline: float


def evaluate(
    runs: Sequence[Path],
    *,
    data: Path = Path("data/instance"),
    out: Path = Path("results/instance"),
    batch_size: int = 256,
) -> tuple[Path, list[Row]]:
    """Judge trained runs on both halves of the set they come from; write `<out>/results.csv`."""
    rows = [judge(run, data=data, batch_size=batch_size) for run in runs]
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.csv"
    replace_file(path, text.getvalue().encode())
    return path, rows


def judge(run: Path, *, data: Path = Path("data/instance"), batch_size: int = 256) -> Row:
    """Return the figures of one run folder, or of one policy file."""
    policy = run / "policy.pt" if run.is_dir() else run
    if not policy.exists():
        raise InputError(f"{run} has no policy.pt: train it to the end with `l2b instance train`")
    about = instance_provenance(policy)
    labelled = load(data / f"{about['dataset']}.npz")
    if labelled.recipe != Recipe(**about["recipe"]):
        raise InputError(
            f"{policy} was trained on {Recipe(**about['recipe'])}, but {data} has "
            f"{labelled.recipe}: its halves are others, give --data the right folder"
        )
    task, model = task_named(about["task"]), load_model(policy)
    train = task.half(labelled, "train", random=about["random"])
    test = task.half(labelled, "test", random=about["random"])
    renumbered = task.half(labelled, "test", random=about["random"], permute=1)
    figures = [
        mean_figures(model, task, instances, batch_size=batch_size)[task.metric]
        for instances in (train, test, renumbered)
    ]
    seen = train.targets.double().numpy()
    return Row(
        about["dataset"],
        about["task"],
        model.config["backbone"],
        f"{model.config['layers']}x{model.config['width']}",
        about["random"],
        about["seed"],
        about["epochs"],
        about["seconds"],
        about["stopped"],
        len(train),
        len(test),
        *figures,
        *(task.baseline(seen, half.targets.double().numpy()) for half in (train, test)),
    )


def instance_provenance(policy: Path | str) -> dict:
    """Return how a policy of this task was trained, or refuse one of another task."""
    metadata = load_policy(policy).metadata
    about = metadata.get("provenance", {})
    if metadata["task"] != "instance" or "recipe" not in about:
        raise InputError(
            f"{policy} is a policy for the {metadata['task']} task: give one that "
            "`l2b instance train` wrote"
        )
    return json.loads(json.dumps(about))


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table, a line for each kind of model: means and deviations over seeds."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        key = (row.dataset, row.task, row.random, row.size, row.backbone)
        groups.setdefault(key, []).append(row)
    lines = [
        "| set | task | random feature | model | runs | epochs | train | test | test, renumbered "
        "| baseline train / test | paper |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (dataset, task, random, size, backbone), group in groups.items():
        first = group[0]
        paper = PAPER.get((dataset, task, backbone))
        epochs = sorted({row.epochs for row in group})
        cells = [
            dataset,
            task,
            random,
            f"{backbone} {size}",
            str(len(group)),
            f"{epochs[0]}" if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}",
            _spread(task, [row.train for row in group]),
            _spread(task, [row.test for row in group]),
            _spread(task, [row.test_renumbered for row in group]),
            f"{_figure(task, first.train_baseline)} / {_figure(task, first.test_baseline)}",
            "" if paper is None else _figure(task, paper),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(task: str, values: list[float]) -> str:
    mean = _figure(task, statistics.fmean(values))
    return mean if len(values) == 1 else f"{mean} ± {_figure(task, statistics.stdev(values))}"


def _figure(task: str, value: float) -> str:
    return f"{100 * value:.1f} %" if task == "feasibility" else f"{value:.2e}"
