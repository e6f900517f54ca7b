"""Training a model that predicts the values of binary variables, from collected labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from learn2branch.errors import InputError
from learn2branch.models import build_model
from learn2branch.policy import export_policy
from learn2branch.runs import Run
from learn2branch.training import Progress, TrainingConfig, TrainingResult
from learn2branch.training import train as train_model
from pipelines.element_level.dataset import TEMPERATURE, BinaryPrediction, Pools
from pipelines.element_level.labels import label_files, label_name
from pipelines.element_level.presets import LEARNING_RATES, element_preset
from pipelines.inputs import find_instances
from pipelines.progress import track

_EDGES_AT_ONCE = 1_000_000  # a forward and backward pass holds some hundred bytes for each
_VALID_SHARE = 5  # without a valid split, every fifth instance validates


def train(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    *,
    preset: str = "paper",
    backbone: str = "dualattn",
    size: str | None = None,
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    budget_seconds: float | None = None,
    temperature: float = TEMPERATURE,
    labels: Path | str = "labels",
    out: Path | str | None = None,
    device: str = "cpu",
) -> tuple[Path, TrainingResult]:
    """Train into a run folder and export the policy; return the folder and the result.

    Labels of a family are looked for in `labels/<family>/<preset>`, without a family in `labels`,
    where a user's own `instances` choose which of them to train on.
    A folder with `train` and `valid` in it is used as it is; of any other, every fifth instance
    validates. A run that was interrupted goes on.
    """
    if backbone not in LEARNING_RATES:
        known = ", ".join(LEARNING_RATES)
        raise InputError(f"there is no backbone {backbone!r}: choose from {known}")
    settings = element_preset(preset)
    folder = Path(labels) / problem / preset if problem else Path(labels)
    if problem and instances:
        raise InputError("give a family (--problem) or your own files (--instances), one of them")
    training, validation = (Pools(files, temperature) for files in split_files(folder, instances))
    first = training[0]
    config = TrainingConfig(
        epochs=epochs or settings.epochs,
        batch_size=batch_size or settings.batch_size,
        lr=LEARNING_RATES[backbone] if lr is None else lr,
        seed=seed,
        budget_seconds=budget_seconds or settings.training_seconds,
        device=device,
    )
    config = replace(config, chunk=max(1, _EDGES_AT_ONCE // max(first.graph.num_edges, 1)))
    torch.manual_seed(seed)
    model = build_model(backbone, task="element", size=size or settings.model_size)
    model.fit_normaliser(training[i].graph for i in range(min(len(training), 100)))
    name = f"element-{problem}-{preset}" if problem else f"element-{folder.name}"
    run = Run(Path(out) if out else Path("runs") / f"{name}-{backbone}-seed{seed}")
    what = {
        "task": "element",
        "problem": problem or "",
        "preset": preset,
        "labels": str(folder),
        "instances": len(training),
        "temperature": temperature,
        "position": first.facts["position"] == "True",
    }
    with track(f"training {backbone}", config.epochs) as progress:
        shown = 0

        def show(state: Progress) -> None:
            nonlocal shown
            progress.advance(state.epoch - 1 - shown, note=f"loss {state.metrics['loss']:.4f}")
            shown = state.epoch - 1

        result = train_model(
            model,
            BinaryPrediction(),
            training,
            validation,
            config,
            run.folder,
            settings={"data": what, "model": model.config},
            report=show,
        )
        progress.advance(result.epochs - shown)
    provenance = {
        **what,
        "backbone": backbone,
        "seed": seed,
        "epochs": result.epochs,
        "seconds": round(result.seconds, 1),
        "valid": {name: float(value) for name, value in result.best.items()},
    }
    export_policy(model, run.policy_path, provenance=provenance)
    return run.folder, result


def split_files(
    folder: Path, instances: Sequence[str | Path] = ()
) -> tuple[list[Path], list[Path]]:
    """Return the files to train on and those to validate on, of all labels or some instances'."""
    train_files, valid_files = (label_files(folder / split) for split in ("train", "valid"))
    if instances or not train_files:
        files = _labels_of(instances, folder) if instances else label_files(folder)
        held_out = np.arange(len(files)) % _VALID_SHARE == _VALID_SHARE - 1
        train_files = [file for file, out in zip(files, held_out, strict=True) if not out]
        valid_files = [file for file, out in zip(files, held_out, strict=True) if out]
    if not train_files or not valid_files:
        raise InputError(
            f"{folder} has no labels to train and validate on: run l2b element collect, for at "
            f"least {_VALID_SHARE} instances"
        )
    return train_files, valid_files


def _labels_of(instances: Sequence[str | Path], folder: Path) -> list[Path]:
    """Return the labels that `l2b element collect` made from a user's own instances."""
    wanted = {path: folder / label_name(path) for path in find_instances(instances)}
    missing = [path for path, labels in wanted.items() if not labels.exists()]
    if missing:
        raise InputError(
            f"{folder} has no labels of {missing[0]} ({len(missing)} of {len(wanted)} instances "
            "have none): run l2b element collect with the same --instances"
        )
    return list(wanted.values())
