"""Training a model of instances, with the paper's settings unless told otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learn2branch import build_model, export_policy
from learn2branch.errors import InputError
from learn2branch.graph import BipartiteGraph
from learn2branch.runs import Run
from learn2branch.training import Progress, TrainingConfig, TrainingResult
from learn2branch.training import train as run_training
from pipelines.instance_level.data import load
from pipelines.instance_level.graphs import RANDOM, Groups, schema
from pipelines.instance_level.tasks import task_named

LEARNING_RATES = {"dualattn": 8e-4, "bgnn": 3e-4}  # the paper's
# Passes over the training half between two looks at how well it is fitted; a look costs half one.
PASSES = 10
_NEVER = 10**9  # epochs: the paper neither lowers the rate nor stops for want of improvement


def train(
    dataset: str,
    task: str,
    *,
    backbone: str = "dualattn",
    size: str = "full",
    layers: int | None = None,
    random: str | None = None,
    epochs: int | None = None,
    batch_size: int = 64,
    lr: float | None = None,
    seed: int = 0,
    budget_seconds: float | None = None,
    device: str = "cpu",
    data: Path = Path("data/instance"),
    out: Path | None = None,
    report: Callable[[Progress], None] | None = None,
) -> tuple[Path, TrainingResult]:
    """Train on the first half of a set into a run folder; return the folder and what came out.

    The best epoch is chosen on that same half, as in the paper; the test half is not looked at.
    It ends early once that half is solved. A run that was stopped goes on.
    """
    what = task_named(task)
    random = random or ("instance" if dataset == "foldable" else "none")
    if random not in RANDOM:
        raise InputError(f"'{random}' is not one of {', '.join(RANDOM)}")
    labelled = load(data / f"{dataset}.npz")
    instances = what.half(labelled, "train", random=random)
    if len(instances) == 0:
        raise InputError(f"{data / dataset}.npz has no instance with an optimal value to learn")
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {} if layers is None else {"layers": layers}
    model = build_model(backbone, "instance", size, schema=schema(random).name, **sizes)
    every = instances.batch(range(len(instances))).graph
    model.fit_normaliser([every])
    twins = 2 if dataset == "foldable" and task == "feasibility" else 1
    epochs = epochs or what.epochs
    passes = next(p for p in range(min(PASSES, epochs), 0, -1) if epochs % p == 0)
    config = TrainingConfig(
        epochs=epochs // passes,
        batch_size=max(1, batch_size // twins),
        lr=LEARNING_RATES.get(backbone, 1e-3) if lr is None else lr,
        patience=_NEVER,
        stop_patience=_NEVER,
        seed=seed,
        target_loss=what.solved_below(len(instances)),
        budget_seconds=budget_seconds,
        device=device,
    )
    folder = out or Path("runs") / f"instance-{dataset}-{task}-{backbone}-{random}-{seed}"
    about: dict[str, Any] = {
        "dataset": dataset,
        "task": task,
        "random": random,
        "model": model.config,
        "recipe": asdict(labelled.recipe),
        "instances": len(instances),
        "passes": passes,
    }
    _check_same(Run(folder), about)
    result = run_training(
        model, what, Groups(instances, twins, passes), instances, config, folder,
        settings={"instance": about}, report=report,
    )  # fmt: skip
    provenance = {
        **about,
        "seed": seed,
        "epochs": result.epochs * passes,
        "seconds": round(result.seconds, 1),
        "stopped": result.stopped,
        "constant": constant_columns(every),
    }
    export_policy(model, Run(folder).policy_path, provenance=provenance)
    return folder, result


def constant_columns(graph: BipartiteGraph) -> dict[str, dict[str, float]]:
    """Return the value of each feature that has only one: a model knows no other."""
    columns = {
        "variable": (schema("redrawn").variable, graph.variable_features),
        "constraint": (schema("redrawn").constraint, graph.constraint_features),
        "edge": (("coefficient",), graph.edge_values[:, None]),
    }
    return {
        kind: {
            name: float(column[0])
            for name, column in zip(names, features.T, strict=False)
            if _is_constant(column)
        }
        for kind, (names, features) in columns.items()
    }


def _is_constant(column: Tensor) -> bool:
    return len(column) > 0 and bool((column == column[0]).all())


def _check_same(run: Run, about: dict[str, Any]) -> None:
    if not run.checkpoint_path.exists():
        return
    before = run.read_config().get("instance", {})
    for name, value in about.items():
        if before.get(name) != value:
            raise InputError(
                f"{run.folder} holds a run with {name} = {before.get(name)}, not {value}: "
                "choose another folder"
            )
