"""A run: the folder that a training writes, and the files in it.

`config.toml` says what was asked for, `metrics.jsonl` has a line an epoch, `checkpoint.pt` holds
everything needed to go on (tensors and plain values only), `learning_curve.png` is for the eye.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import tomli_w
import torch

from learn2branch.errors import InputError, WorkError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Run:
    """One folder under `runs/`; creating the object creates nothing."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoint_path = self.folder / "checkpoint.pt"
        self.metrics_path = self.folder / "metrics.jsonl"
        self.config_path = self.folder / "config.toml"
        self.policy_path = self.folder / "policy.pt"
        self._board: Any = None

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder for one training; a second one at the same time is refused."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a") as file:
            hold(
                file,
                f"another training is writing {self.folder}: wait for it, or choose another --out",
            )
            yield

    def write_config(self, config: dict[str, Any]) -> None:
        """Write the configuration; fields that are None are left out, as TOML has no null."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.config_path, tomli_w.dumps(_without_none(config)).encode())

    def read_config(self) -> dict[str, Any]:
        """Read the configuration back."""
        return read_toml(self.config_path)

    def save_checkpoint(self, state: dict[str, Any]) -> None:
        """Write the checkpoint under a temporary name, then rename: there is always a whole one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.checkpoint_path.with_suffix(".part")
        try:
            torch.save(state, temporary)
            os.replace(temporary, self.checkpoint_path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            temporary.unlink(missing_ok=True)
            raise WorkError(
                f"{self.checkpoint_path} could not be written ({str(error).splitlines()[0]}): "
                "free some disk space and run the same command again"
            ) from error

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Return the checkpoint, or None if there is none yet."""
        if not self.checkpoint_path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(
                self.checkpoint_path, map_location="cpu", weights_only=True
            )
        except Exception as error:
            raise InputError(
                f"{self.checkpoint_path} cannot be read as a checkpoint: delete it to start anew"
            ) from error
        return state

    def keep_metrics_before(self, epoch: int) -> None:
        """Drop the lines of epochs that will be done again, so that no epoch appears twice."""
        if self.metrics_path.exists():
            lines = [json.dumps(line) for line in self.metrics() if line["epoch"] < epoch]
            replace_file(self.metrics_path, "".join(line + "\n" for line in lines).encode())

    def log(self, metrics: dict[str, Any]) -> None:
        """Append one epoch's figures, for reading programs and for TensorBoard where installed."""
        with self.metrics_path.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
        if self._board is None:
            self._board = _summary_writer(self.folder, metrics["epoch"])
        if self._board:
            for name, value in metrics.items():
                if isinstance(value, int | float) and name != "epoch":
                    self._board.add_scalar(name, value, metrics["epoch"])
            self._board.flush()

    def metrics(self) -> list[dict[str, Any]]:
        """Return the figures of all epochs; a line that was cut off is not counted."""
        lines = []
        for line in self.metrics_path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return lines

    def close(self) -> None:
        """Let go of the TensorBoard file."""
        if self._board:
            self._board.close()

    def draw_learning_curve(self) -> None:
        """Draw losses and accuracies over the epochs as `learning_curve.png`."""
        from matplotlib.figure import Figure

        epochs = self.metrics()
        if not epochs:
            return
        shown = [name for name in epochs[-1] if name.startswith("valid/") and name != "valid/loss"]
        figure = Figure(figsize=(9, 4), layout="constrained")
        left, right = figure.subplots(1, 2)
        x = [line["epoch"] for line in epochs]
        for split in ("train", "valid"):
            left.plot(x, [line.get(f"{split}/loss") for line in epochs], ".-", label=split)
        left.set(xlabel="epoch", ylabel="loss")
        left.legend()
        for name in shown:
            label = name.removeprefix("valid/")
            right.plot(x, [line.get(name) for line in epochs], ".-", label=label)
        right.set(xlabel="epoch", ylabel="validation")
        if shown:
            right.legend()
        figure.savefig(self.folder / "learning_curve.png", dpi=120)


def hold(file: IO[Any], refusal: str) -> None:
    """Lock an open file until it is closed; refuse, with that sentence, what another one holds."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError(refusal) from None
    except OSError:
        pass  # a file system without locks


def replace_file(path: Path, content: bytes) -> None:
    """Write a file under a temporary name and rename it: it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise WorkError(
            f"{path} could not be written ({error.strerror}): make room or choose another folder, "
            "then run the same command again"
        ) from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file; what cannot be read is the user's to mend."""
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error


def _without_none(config: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, dict) else value
        for name, value in config.items()
        if value is not None
    }


def _summary_writer(folder: Path, epoch: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    # Epochs that are done again replace what an interrupted run wrote of them.
    return SummaryWriter(str(folder / "tensorboard"), purge_step=epoch)
