"""Training a branching policy from collected samples: into a run folder, up to a checked policy.pt.

Data-parallel training runs the same function in every process; process 0 writes and returns.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from instances import FAMILIES
from learn2branch.backbones.registry import BACKBONES
from learn2branch.data_parallel import gather, launch, process_group, rank
from learn2branch.errors import InputError, WorkError
from learn2branch.imitation import Imitation, SampleSet, baselines
from learn2branch.kernels import keep_memory
from learn2branch.models import GraphModel, build_model
from learn2branch.policy import export_policy, load_model, load_policy
from learn2branch.runs import Run, replace_file
from learn2branch.training import Progress, TrainingConfig, evaluate
from learn2branch.training import train as train_model
from pipelines.branching.collect import COLLECTION, collected_from
from pipelines.inputs import find_instances
from pipelines.progress import say, set_verbosity, track, verbosity

TEST = "test.json"  # in the run folder: accuracies of the policy and of the baselines
_NORMALISER_SAMPLES = 300
_EDGES_AT_ONCE = 200_000  # a forward pass: larger ones leave the processor's caches


@dataclass(frozen=True)
class Settings:
    """What to train on what; with a `TrainingConfig`, all that a run needs to be made again."""

    samples: str  # folder with the splits train, valid, test
    model: str = "dualattn"
    size: str = "full"
    soft_targets: float = 0.0  # temperature; 0 trains towards the expert's choice alone
    start: str = ""  # a policy to begin with, which then decides model and size


@dataclass(frozen=True)
class Trained:
    """What a training came to."""

    folder: Path
    policy: Path
    test: dict[str, dict[str, float]]  # "policy" and each baseline -> acc@k on the test split
    best: dict[str, float]  # validation figures
    epochs: int
    stopped: str
    seconds: float
    waiting_share: float
    examples_per_second: float


def train(
    problem: str | None = None,
    samples: Path | str | None = None,
    *,
    instances: Sequence[str | Path] = (),
    model: str | None = None,
    size: str | None = None,
    soft_targets: float = 0.0,
    start: Path | str = "",
    training: TrainingConfig | None = None,
    workers: int = 1,
    run: Path | str | None = None,
    runs: Path | str = "runs",
) -> Trained:
    """Train a policy; if there is an unfinished run of the same settings, go on with it.

    Without `samples` the collection of `problem` under `samples/` is used, that of a user's own
    `instances`, or the newest one there. `run` names the run folder; without it that is
    `runs/<collection>-<model>`, with the size if small and a number if there is a finished one. The
    model is "dualattn" in size "full" unless told otherwise, or with `start` that of a policy, a
    file or a shipped one, whose weights and normaliser it begins with.
    """
    folder = Path(samples) if samples else find_collection(problem, instances)
    if start:
        model, size = _model_of(start, model, size)
    settings = Settings(str(folder), model or "dualattn", size or "full", soft_targets, str(start))
    config = training or TrainingConfig()
    # What is wrong is said here, before processes are started.
    sets = _open(folder, config)
    if config.chunk is None:
        edges = sets[0][0].state.num_edges
        config = replace(
            config, chunk=max(1, min(config.batch_size, _EDGES_AT_ONCE // max(edges, 1)))
        )
    in_group = "WORLD_SIZE" in os.environ
    examples = {"train": len(sets[0]), "valid": len(sets[1])}
    where = Path(run) if run else _run_folder(Path(runs), settings, config, examples)
    arguments = (settings, config, where, verbosity())
    try:
        if workers > 1 and not in_group:
            trained: Trained = launch(_train, arguments, workers)
        else:
            trained = _train(*arguments)
    except BaseException:
        if run is None:
            with suppress(OSError):
                where.rmdir()  # if it is still empty
        raise
    return trained


def find_collection(
    problem: str | None = None,
    instances: Sequence[str | Path] = (),
    root: Path = Path("samples"),
) -> Path:
    """Return the folder of a family's samples, of one's own instances', or the newest one."""
    if problem is not None and instances:
        raise InputError("name a family with --problem, or your own files with --instances")
    if problem is not None:
        if not (root / problem).is_dir():
            raise InputError(
                f"there are no samples in {root / problem}: run l2b collect --problem {problem}"
            )
        return root / problem
    found = sorted(root.glob(f"*/{COLLECTION}"), key=lambda path: path.stat().st_mtime)
    if instances:
        wanted = {path.resolve() for path in find_instances(instances)}
        found = [path for path in found if collected_from(path) == wanted]
        if not found:
            raise InputError(
                f"no collection in {root} was made from these {len(wanted)} instances: run "
                "l2b collect with the same --instances, or name a collection with --samples"
            )
    if not found:
        raise InputError(
            f"there are no samples in {root}: run l2b collect first, or name them with --samples"
        )
    return found[-1].parent


def _model_of(start: Path | str, model: str | None, size: str | None) -> tuple[str, str]:
    """Return backbone and size of a policy to start from; refuse another kind than asked for."""
    config = load_model(start).config
    backbone: str = config["backbone"]
    if config["task"] != "state":
        raise InputError(f"{start} does not branch, it is for the task {config['task']}")
    if model not in (None, backbone):
        raise InputError(f"{start} is a {backbone}, not a {model}: leave --model out")
    known = BACKBONES[backbone].SIZES
    found = next((s for s in known if build_model(backbone, size=s).config == config), "own")
    if size not in (None, found):
        raise InputError(f"{start} is of size {found}, not {size}: leave --size out")
    return backbone, found


def _open(folder: Path, config: TrainingConfig) -> tuple[SampleSet, SampleSet, SampleSet]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: run l2b collect first")
    sets = SampleSet(folder / "train"), SampleSet(folder / "valid"), SampleSet(folder / "test")
    if len(sets[0]) < config.batch_size:
        raise InputError(
            f"{folder} has only {len(sets[0])} training samples, less than one batch of "
            f"{config.batch_size}: collect more, or lower --batch-size"
        )
    return sets


def _run_folder(
    runs: Path, settings: Settings, config: TrainingConfig, examples: dict[str, int]
) -> Path:
    """Return the folder of an unfinished run of the same settings, or the next free one."""
    size = "" if settings.size == "full" else f"-{settings.size}"
    name = f"{Path(settings.samples).name}-{settings.model}{size}"
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        if _is_free(folder):
            return folder
        run = Run(folder)
        if not run.policy_path.exists() and run.config_path.exists():
            found = run.read_config()
            begun = found.get("training", {})
            # Older runs have neither a start nor the number of examples.
            data = {"start": "", **found.get("data", {})}
            same = data == asdict(settings) and found.get("examples", examples) == examples
            if same and not config.conflict_with(begun):
                return folder
        number += 1


def _is_free(folder: Path) -> bool:
    """Tell whether a folder is not there yet; it is then made, so that nobody else takes it."""
    if os.environ.get("RANK", "0") != "0":  # of those that torchrun started, one decides
        return not folder.exists()
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _train(settings: Settings, config: TrainingConfig, folder: Path, level: int) -> Trained:
    set_verbosity(level if rank() == 0 and os.environ.get("RANK", "0") == "0" else -1)
    if config.device.startswith("cuda") and "LOCAL_RANK" in os.environ:
        config = replace(config, device=f"cuda:{os.environ['LOCAL_RANK']}")
    keep_memory()
    with process_group(config.device):
        # Processes that torchrun started looked for a folder each; the one who writes decides.
        return _train_in_group(settings, config, Run(gather(folder)[0]))


def _train_in_group(settings: Settings, config: TrainingConfig, run: Run) -> Trained:
    train_set, valid_set, test_set = _open(Path(settings.samples), config)
    for samples in (train_set, valid_set, test_set):
        for problem in samples.problems:
            say(f"left out: {problem}")
    torch.manual_seed(config.seed)
    start: dict[str, Any] = {}
    if settings.start:
        model = load_model(settings.start)
        # Read now: the file may be replaced or gone when the training ends.
        before = load_policy(settings.start).metadata["provenance"]
        start = {"start": {"policy": Path(settings.start).name, "provenance": before}}
    else:
        model = build_model(settings.model, task="state", size=settings.size)
    if run.checkpoint_path.exists():
        say(f"going on with {run.folder}")
    elif not settings.start:
        say("fitting the normaliser")
        step = max(1, math.ceil(len(train_set) / _NORMALISER_SAMPLES))
        model.fit_normaliser(train_set[i].state for i in range(0, len(train_set), step))
    task = Imitation(settings.soft_targets)
    say(
        f"training {settings.model} on {len(train_set)} samples of {settings.samples}, "
        f"validating on {len(valid_set)}"
    )
    with track("training") as progress:
        result = train_model(
            model,
            task,
            train_set,
            valid_set,
            config,
            run.folder,
            settings={"data": asdict(settings), "model": model.config},
            trained_before=bool(settings.start),
            report=lambda state: progress.advance(note=_live_line(state)),
            report_epoch=_say_epoch,
        )
    chunk = config.chunk or config.batch_size
    figures = evaluate(model, task, test_set, batch_size=chunk, device=config.device)
    trained = Trained(
        run.folder, run.policy_path, {"policy": figures}, result.best, result.epochs,
        result.stopped, result.seconds, result.waiting_share, result.examples_per_second,
    )  # fmt: skip
    if rank() == 0:
        trained.test.update(baselines(test_set))
        counts = {"train": len(train_set), "valid": len(valid_set), "test": len(test_set)}
        _export(model.cpu(), run, settings, config, trained, counts, start)
        _check(model, run, test_set)
        replace_file(run.folder / TEST, (json.dumps(trained.test, indent=1) + "\n").encode())
    return trained


def _live_line(state: Progress) -> str:
    left = ""
    if state.seconds_left is not None:
        left = f", {state.seconds_left // 60:.0f}:{state.seconds_left % 60:02.0f} left"
    return (
        f"steps, epoch {state.epoch} ({state.step}/{state.steps}), "
        f"loss {state.metrics['loss']:.3f}, acc@1 {100 * state.metrics['acc@1']:.1f} %, "
        f"{state.examples_per_second:.1f} samples/s{left}"
    )


def _say_epoch(figures: dict[str, Any]) -> None:
    valid = (
        f"valid loss {figures['valid/loss']:.4f}, acc@1 {100 * figures['valid/acc@1']:.1f} %, "
        f"acc@5 {100 * figures['valid/acc@5']:.1f} %"
    )
    if figures["epoch"] == 0:
        say(f"at the start: {valid}")
        return
    say(
        f"epoch {figures['epoch']}: train loss {figures['train/loss']:.4f}, {valid}, "
        f"rate {figures['lr']:.2g}, {figures['seconds']:.0f} s"
    )


def _export(
    model: GraphModel,
    run: Run,
    settings: Settings,
    config: TrainingConfig,
    trained: Trained,
    counts: dict[str, int],
    start: dict[str, Any],
) -> None:
    file = Path(settings.samples) / COLLECTION
    collection = json.loads(file.read_text()) if file.exists() else {}
    plan = collection.get("train", {})
    family, preset = plan.get("family"), plan.get("preset")
    provenance = {
        "family": family,
        "instances": asdict(FAMILIES[family].parameters_of(preset, "train")) if family else None,
        "samples": counts,
        "collection": {Path(settings.samples).name: collection},
        "training": asdict(config),
        "soft_targets": settings.soft_targets,
        "epochs": trained.epochs,
        "stopped": trained.stopped,
        "seconds": round(trained.seconds, 1),
        "valid": trained.best,
        "test": trained.test,
        **start,
    }
    export_policy(model, run.policy_path, provenance=provenance)


def _check(model: GraphModel, run: Run, samples: SampleSet, count: int = 8) -> None:
    """Load the policy again and compare its scores with the model's."""
    policy = load_policy(run.policy_path)
    for index in range(0, len(samples), max(1, len(samples) // count)):
        sample = samples[index]
        with torch.no_grad():
            expected = model(sample.state, sample.candidates)
        found = policy(*sample.state.tensors(), sample.candidates)
        if not torch.allclose(expected, found, rtol=1e-2, atol=1e-3):
            worst = float((expected - found).abs().max())
            raise WorkError(
                f"{run.policy_path} gives other scores than the model it was made from, by up to "
                f"{worst:.2g}: please report it"
            )


def show(trained: Trained) -> list[str]:
    """Return the lines that a user reads at the end: accuracies beside the baselines."""
    names = [name for name in trained.test["policy"] if name.startswith("acc@")]
    lines = [f"{'test samples':16}" + "".join(f"{name:>9}" for name in names)]
    for row, figures in trained.test.items():
        lines.append(f"{row:16}" + "".join(f"{100 * figures[name]:8.1f}%" for name in names))
    return lines
