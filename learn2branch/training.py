"""One training loop for all tasks: the task brings loss and metrics, the dataset brings batches.

The loop shuffles, steps, validates, lowers the rate, stops early, checkpoints and resumes. Nothing
random in it depends on the past: a run that was stopped anywhere goes on as if it never had been.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from learn2branch.batching import Dataset, batches, parts
from learn2branch.data_parallel import gather, rank, share, sum_over_processes
from learn2branch.errors import InputError, WorkError
from learn2branch.kernels import keep_memory
from learn2branch.runs import Run


class Task(Protocol):
    """What is learned: the loss to lower, and the figures to show."""

    def step(self, model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Any]]:
        """Return the loss and the metrics (numbers or tensors), each summed over the examples."""
        ...


@dataclass(frozen=True)
class TrainingConfig:
    """How to train; the defaults are the paper's."""

    epochs: int = 1000  # at most
    batch_size: int = 64  # examples a step, over all processes
    lr: float = 1e-3  # Adam's
    patience: int = 10  # epochs without a better validation loss before the rate is lowered
    stop_patience: int = 20  # ... before the training stops
    lr_factor: float = 0.2  # what the rate is multiplied with
    target_loss: float | None = None  # a validation loss below this means solved: stop
    seed: int = 0  # of the order of the examples, and of whatever else is random
    epoch_size: int | None = None  # examples an epoch; all if left out
    budget_seconds: float | None = None  # wall time of training and validation, over all resumes
    cooldown: float = 0.3  # with a budget: the last share of it, in which the rate falls to zero
    chunk: int | None = None  # examples a forward pass, if less than a batch fits well
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "stop_patience", "epoch_size", "chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if not self.lr > 0:
            raise InputError(f"lr must be positive, not {self.lr}")

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TrainingConfig:
        """Build from what a `config.toml` holds; an unknown name is refused."""
        known = {field.name for field in fields(TrainingConfig)}
        if unknown := set(values) - known:
            raise InputError(
                f"{', '.join(sorted(unknown))} is no setting of a training; "
                f"there are {', '.join(sorted(known))}"
            )
        return TrainingConfig(**values)

    def conflict_with(self, begun: dict[str, Any]) -> str | None:
        """Return the setting in which a run that was begun differs, so that this cannot go on."""
        mine = asdict(self)
        settings = [name for name in mine if name not in _FREE_TO_CHANGE]
        return next((name for name in settings if begun.get(name) != mine[name]), None)


# What may differ between a run and its continuation.
_FREE_TO_CHANGE = {
    *("epochs", "budget_seconds", "cooldown", "stop_patience", "target_loss", "device", "chunk"),
}
_IN_A_CHECKPOINT = {"model", "optimizer", "best_weights", "state", "config"}
_SAME_SIGNAL = 1.0  # seconds in which a second signal is the first once more, passed on to us


@dataclass(frozen=True)
class Progress:
    """Where a training stands, for whoever shows it."""

    epoch: int  # from 1
    step: int  # of this epoch, from 1
    steps: int  # in this epoch
    metrics: dict[str, float]  # mean training figures of this epoch so far, with "loss"
    examples_per_second: float
    seconds_left: float | None  # to the end of the budget, or of this epoch without one


@dataclass(frozen=True)
class TrainingResult:
    """What came out; the model itself holds the best weights."""

    best: dict[str, float]  # validation figures of the best epoch, with "loss" and "epoch"
    epochs: int  # done in all
    stopped: str  # "epochs", "solved", "no improvement" or "budget"
    seconds: float  # of training and validation, over all resumes
    waiting_share: float  # of the training time, spent waiting for data
    examples_per_second: float  # in training, over all processes


class _State:
    """Everything that changes while training, as a checkpoint keeps it."""

    def __init__(self) -> None:
        self.epoch = 1  # the epoch under way
        self.step = 0  # steps of it already done
        self.bad_epochs = 0  # since the best one
        self.lr_scale = 1.0
        self.seconds = 0.0  # of training and validation
        self.training_seconds = 0.0
        self.waiting_seconds = 0.0  # for data
        self.examples = 0  # trained on
        self.sums: dict[str, float] = {}  # training figures of the epoch under way, and "count"
        self.best: dict[str, float] = {}


def train(
    model: nn.Module,
    task: Task,
    train_set: Dataset,
    valid_set: Dataset,
    config: TrainingConfig,
    run_dir: Path | str,
    *,
    settings: dict[str, Any] | None = None,
    trained_before: bool = False,
    report: Callable[[Progress], None] | None = None,
    report_epoch: Callable[[dict[str, Any]], None] | None = None,
) -> TrainingResult:
    """Train a model into a run folder; if it holds a run of the same configuration, go on with it.

    `settings` are further tables for `config.toml` (what data, what model); a run of other settings
    or another number of examples is refused. Weights that were `trained_before` are validated
    first, as epoch 0, and kept unless an epoch is better. `report` is told of every step and
    `report_epoch` of every line of `metrics.jsonl`, both in process 0. Ctrl-C and SIGTERM end at
    the next step with a checkpoint and raise KeyboardInterrupt. In a process group each process
    calls this with the same arguments; process 0 writes.
    """
    if len(train_set) < 1 or len(valid_set) < 1:
        raise InputError("training needs at least one training and one validation example")
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch knows no GPU at all
        raise InputError(f"torch has no device {config.device!r} here: leave it out") from error
    keep_memory()
    run = Run(run_dir)
    loop = _Loop(model, task, train_set, valid_set, config, run, report, report_epoch)
    with run.claimed() if rank() == 0 else nullcontext(), _stop_signals() as stop_asked:
        loop.begin(settings or {})
        return loop.run(stop_asked, trained_before)


@torch.no_grad()
def evaluate(
    model: nn.Module, task: Task, dataset: Dataset, *, batch_size: int = 64, device: str = "cpu"
) -> dict[str, float]:
    """Return the mean loss and metrics over a dataset; processes of a group share the work."""
    was_training = model.training
    model.eval()
    sums: dict[str, float] = {}
    everything = range(len(dataset))[share(len(dataset))]
    for _, batch, _ in batches(dataset, parts(everything, batch_size)):
        loss, metrics = task.step(model, batch.to(device))
        _add(sums, {"loss": loss, **metrics})
    model.train(was_training)
    return {name: value / len(dataset) for name, value in _over_processes(sums).items()}


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        train_set: Dataset,
        valid_set: Dataset,
        config: TrainingConfig,
        run_folder: Run,
        report: Callable[[Progress], None] | None,
        report_epoch: Callable[[dict[str, Any]], None] | None,
    ) -> None:
        self.report_epoch = report_epoch
        self.model = model.to(config.device)
        self.task, self.config, self.run_folder, self.report = task, config, run_folder, report
        self.train_set, self.valid_set = train_set, valid_set
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.lr)
        self.state = _State()
        self.best_weights: dict[str, Tensor] = {}
        self.settings: dict[str, Any] = {}  # by the names they have in config.toml
        self.clock = time.perf_counter()

    def begin(self, settings: dict[str, Any]) -> None:
        """Load the checkpoint, if there is one of the same configuration; write the latter."""
        examples = {"train": len(self.train_set), "valid": len(self.valid_set)}
        settings = {**settings, "examples": examples}
        self.settings = dict(_by_name(json.loads(json.dumps(settings, default=str))))
        checkpoint = self.run_folder.load_checkpoint()
        if checkpoint is not None:
            self._check_same(checkpoint)
            try:
                self.model.load_state_dict(checkpoint["model"])
            except RuntimeError as error:
                raise InputError(
                    f"{self.run_folder.folder} holds a run of another model: choose another folder"
                ) from error
            self.optimizer.load_state_dict(checkpoint["optimizer"])
            self.best_weights = checkpoint["best_weights"]
            vars(self.state).update(checkpoint["state"])
        if rank() == 0:
            self.run_folder.write_config({"training": asdict(self.config), **settings})
            self.run_folder.keep_metrics_before(self.state.epoch if self.state.best else 0)
        else:
            self.state.sums = {}  # process 0 goes on with the sums of all

    def _check_same(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint that this training cannot go on from."""
        folder = self.run_folder.folder
        if not (isinstance(checkpoint, dict) and checkpoint.keys() >= _IN_A_CHECKPOINT):
            raise InputError(
                f"{self.run_folder.checkpoint_path} is not the checkpoint of a run: choose another "
                "folder, or delete it to start anew"
            )
        begun = {**checkpoint.get("settings", {}), **checkpoint["config"]}
        mine = {**self.settings, **asdict(self.config)}
        name = self.config.conflict_with(begun) or next(
            # Runs of older versions have no settings in their checkpoints.
            (name for name, value in self.settings.items() if begun.get(name, value) != value),
            None,
        )
        if name:
            raise InputError(
                f"{folder} holds a run with {name} = {begun.get(name)!r}, not {mine[name]!r}: "
                "go on with that, or choose another folder"
            )

    def run(self, stop_asked: threading.Event, trained_before: bool) -> TrainingResult:
        state = self.state
        self.clock = time.perf_counter()
        if trained_before and not state.best:
            self._log({"epoch": 0}, self._judge(epoch=0)[0])
            self._save()
        while not (stopped := self._reason_to_stop()):
            self._epoch(stop_asked)
        if rank() == 0:
            self.run_folder.draw_learning_curve()
            self.run_folder.close()
        self.model.load_state_dict(self.best_weights)
        self.model.eval()
        return TrainingResult(
            best=state.best,
            epochs=state.epoch - 1,
            stopped=stopped,
            seconds=state.seconds,
            waiting_share=state.waiting_seconds / max(state.training_seconds, 1e-9),
            examples_per_second=state.examples / max(state.training_seconds, 1e-9),
        )

    def _reason_to_stop(self) -> str:
        target = self.config.target_loss
        if target is not None and self.state.best and self.state.best["loss"] < target:
            return "solved"
        if self.state.best and self._out_of_time():
            return "budget"
        if self.state.bad_epochs >= self.config.stop_patience:
            return "no improvement"
        return "epochs" if self.state.epoch > self.config.epochs else ""

    def _out_of_time(self) -> bool:
        budget = self.config.budget_seconds
        return budget is not None and self.state.seconds >= budget

    def _epoch(self, stop_asked: threading.Event) -> None:
        state, config = self.state, self.config
        order = np.random.default_rng([config.seed, state.epoch]).permutation(len(self.train_set))
        steps = list(parts(order[: config.epoch_size].tolist(), config.batch_size))
        mine = [parts(step[share(len(step))], config.chunk) for step in steps[state.step :]]
        ahead = batches(self.train_set, (part for step in mine for part in step))
        self.model.train()
        for step, my_parts in zip(steps[state.step :], mine, strict=True):
            step_began = time.perf_counter()
            seed = np.random.SeedSequence([config.seed, state.epoch, state.step])
            torch.manual_seed(int(seed.generate_state(1)[0]))
            stop = self._step(len(step), [next(ahead) for _ in my_parts], stop_asked.is_set())
            state.step += 1
            state.examples += len(step)
            state.training_seconds += time.perf_counter() - step_began
            if stop:
                ahead.close()
                self._save()
                raise KeyboardInterrupt
            self._show(len(steps), step_began)
            if self._out_of_time():
                break
        ahead.close()
        self._validate(whole=state.step == len(steps))

    def _step(
        self, count: int, examples: Sequence[tuple[Sequence[int], Any, float]], stop: bool
    ) -> bool:
        """Make one step of the optimizer; return whether any process was asked to stop."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self.state.lr_scale * self._cooldown()
        for p in self.parameters:  # zeros, not None: a process without examples takes part too
            p.grad = torch.zeros_like(p)
        sums = {"count": 0.0, "loss": 0.0}
        for indices, batch, waited in examples:
            self.state.waiting_seconds += waited
            loss, metrics = self.task.step(self.model, batch.to(self.config.device))
            _add(sums, {"count": len(batch), "loss": loss.detach(), **metrics})
            if not math.isfinite(sums["loss"]):
                # Raised before the weights are touched: the last checkpoint stays good.
                describe = getattr(self.train_set, "describe", str)
                raise WorkError(
                    f"the loss became {sums['loss']} in epoch {self.state.epoch} on "
                    f"{describe(indices)}: look at those examples, or train with a lower rate"
                )
            (loss / count).backward()
        # Process 0's clock counts for all, so that they cool down and stop together.
        now = time.perf_counter()
        elapsed = now - self.clock if rank() == 0 else 0.0
        self.clock = now
        control = torch.tensor([float(stop), elapsed], device=self.parameters[0].device)
        sum_over_processes([*(p.grad for p in self.parameters if p.grad is not None), control])
        self.optimizer.step()
        self.state.seconds += float(control[1])
        _add(self.state.sums, sums)
        return bool(control[0] > 0)

    def _cooldown(self) -> float:
        """Return the share of the rate that is left: 1, falling to 0 at the end of a budget."""
        if not self.config.budget_seconds or not self.config.cooldown:
            return 1.0
        left = 1 - self.state.seconds / self.config.budget_seconds
        return min(1.0, max(left, 0.0) / self.config.cooldown)

    def _validate(self, *, whole: bool) -> None:
        """Judge the weights after an epoch, or a part of one; log, and save."""
        state, config = self.state, self.config
        totals = _over_processes(state.sums)
        count = max(totals.pop("count"), 1)
        valid, is_best = self._judge(state.epoch)
        if whole and not is_best:
            state.bad_epochs += 1
            if state.bad_epochs % config.patience == 0:
                state.lr_scale *= config.lr_factor
        figures = {
            "epoch": state.epoch,
            "seconds": round(state.seconds, 3),
            "lr": self.optimizer.param_groups[0]["lr"],  # of the last step
            **{f"train/{name}": value / count for name, value in totals.items()},
            "examples_per_second": round(state.examples / state.training_seconds, 3),
            "waiting_share": round(state.waiting_seconds / state.training_seconds, 5),
        }
        self._log(figures, valid)
        if whole:
            state.epoch, state.step, state.sums = state.epoch + 1, 0, {}
        self._save()

    def _judge(self, epoch: int) -> tuple[dict[str, float], bool]:
        """Validate the weights and keep them if they are the best so far; tell whether."""
        state, config = self.state, self.config
        valid = evaluate(
            self.model, self.task, self.valid_set,
            batch_size=config.chunk or config.batch_size, device=config.device,
        )  # fmt: skip
        if not math.isfinite(valid["loss"]):
            raise WorkError(
                f"the validation loss became {valid['loss']} in epoch {epoch}: "
                "look at the validation examples, or train with a lower rate"
            )
        is_best = not state.best or valid["loss"] < state.best["loss"]
        if is_best:
            state.best, state.bad_epochs = {"epoch": epoch, **valid}, 0
            self.best_weights = {
                name: value.detach().cpu().clone()
                for name, value in self.model.state_dict().items()
            }
        now, before = time.perf_counter(), self.clock
        state.seconds += gather(now - before)[0]
        self.clock = now
        return valid, is_best

    def _log(self, figures: dict[str, Any], valid: dict[str, float]) -> None:
        figures |= {f"valid/{name}": value for name, value in valid.items()}
        if rank() == 0:
            self.run_folder.log(figures)
            if self.report_epoch is not None:
                self.report_epoch(figures)

    def _save(self) -> None:
        state = dict(vars(self.state))
        state["sums"] = _over_processes(self.state.sums)
        if rank() == 0:
            self.run_folder.save_checkpoint(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "best_weights": self.best_weights,
                    "state": state,
                    "config": asdict(self.config),
                    "settings": self.settings,
                }
            )

    def _show(self, steps: int, step_began: float) -> None:
        if self.report is None or rank() != 0:
            return
        state, budget = self.state, self.config.budget_seconds
        speed = state.examples / state.training_seconds
        if budget is not None:
            left = budget - state.seconds
        else:
            left = (steps - state.step) * (time.perf_counter() - step_began)
        count = state.sums["count"]
        means = {name: value / count for name, value in state.sums.items() if name != "count"}
        self.report(Progress(state.epoch, state.step, steps, means, speed, max(left, 0.0)))


def _by_name(settings: dict[str, Any], table: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings as `table.name`, value."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _by_name(value, f"{table}{name}.")
        else:
            yield f"{table}{name}", value


def _add(sums: dict[str, float], values: dict[str, Any]) -> None:
    for name, value in values.items():
        sums[name] = sums.get(name, 0.0) + float(value)


def _over_processes(sums: dict[str, float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for part in gather(sums):
        _add(totals, part)
    return totals


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Let SIGINT and SIGTERM set an event; a second one interrupts at once."""
    asked, first = threading.Event(), 0.0
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        nonlocal first
        if not asked.is_set():
            first = time.monotonic()
            asked.set()
        elif time.monotonic() - first > _SAME_SIGNAL:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
