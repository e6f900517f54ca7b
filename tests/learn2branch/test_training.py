"""The training loop, on the smallest task that learns: sum up the first variable column."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from learn2branch.data_parallel import launch, process_group
from learn2branch.errors import InputError, WorkError
from learn2branch.graph import BipartiteGraph
from learn2branch.training import Progress, TrainingConfig, TrainingResult, evaluate, train


@dataclass(frozen=True)
class SumBatch:
    graph: BipartiteGraph
    targets: Tensor

    def to(self, device: torch.device | str) -> "SumBatch":
        return SumBatch(self.graph.to(device), self.targets.to(device))

    def __len__(self) -> int:
        return len(self.targets)


class Sums:
    """Random graphs of different sizes with the sum of their first variable column as target."""

    def __init__(self, count: int, seed: int, bad: int | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.graphs, self.bad = [], bad
        for _ in range(count):
            n = int(torch.randint(2, 6, (1,), generator=generator))
            variables = torch.randn(n, 3, generator=generator)
            edges = torch.stack([torch.zeros(n, dtype=torch.long), torch.arange(n)])
            self.graphs.append(BipartiteGraph(torch.zeros(1, 2), edges, torch.ones(n), variables))

    def __len__(self) -> int:
        return len(self.graphs)

    def batch(self, indices: Sequence[int]) -> SumBatch:
        graphs = [self.graphs[i] for i in indices]
        targets = torch.stack([graph.variable_features[:, 0].sum() for graph in graphs])
        if self.bad in indices:
            targets = targets * torch.nan
        return SumBatch(BipartiteGraph.batch(graphs), targets)

    def describe(self, indices: Sequence[int]) -> str:
        return f"graphs {sorted(indices)}"


class SumTask:
    def step(self, model: nn.Module, batch: SumBatch) -> tuple[Tensor, dict[str, Any]]:
        wrong = model(batch.graph) - batch.targets
        return wrong.square().sum(), {"near": (wrong.abs() < 0.1).sum()}


class SumModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weights = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, graph: BipartiteGraph) -> Tensor:
        values = self.weights(graph.variable_features).squeeze(1)
        owner = torch.bucketize(torch.arange(len(values)), graph.variable_ptr[1:], right=True)
        return torch.zeros(graph.num_graphs).index_add(0, owner, values)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.flatten() for value in model.state_dict().values()])


def run(folder: Path, report: Any = None, model: nn.Module | None = None, **config: Any) -> Any:
    model = model or SumModel()
    settings = TrainingConfig(**{"epochs": 6, "batch_size": 8, "lr": 0.02, **config})
    result = train(model, SumTask(), Sums(60, 0), Sums(20, 1), settings, folder, report=report)
    return model, result


def test_training_learns_and_leaves_the_best_weights_in_the_model(tmp_path: Path) -> None:
    model, result = run(tmp_path, epochs=60)
    after = evaluate(model, SumTask(), Sums(20, 1))
    assert after["loss"] < 0.1 * evaluate(SumModel(), SumTask(), Sums(20, 1))["loss"]
    assert after["loss"] == pytest.approx(result.best["loss"], rel=1e-5)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, result.epochs + 1))
    assert min(line["valid/loss"] for line in lines) == result.best["loss"]
    assert (tmp_path / "learning_curve.png").stat().st_size > 1000


@pytest.mark.parametrize("stop_at", [(2, 3), (3, 8)], ids=["within an epoch", "at its end"])
def test_a_stopped_run_goes_on_as_if_never_stopped(
    tmp_path: Path, stop_at: tuple[int, int]
) -> None:
    straight, _ = run(tmp_path / "straight")

    def stop(progress: Progress) -> None:
        if (progress.epoch, progress.step) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", report=stop)
    resumed, result = run(tmp_path / "stopped")
    assert torch.equal(weights(straight), weights(resumed))
    names = ("epoch", "train/loss", "train/near", "valid/loss", "lr")
    figures = [
        [[json.loads(line)[name] for name in names] for line in path.read_text().splitlines()]
        for path in (tmp_path / "straight/metrics.jsonl", tmp_path / "stopped/metrics.jsonl")
    ]
    assert figures[0] == figures[1] and result.epochs == 6


def test_a_second_training_into_the_same_folder_is_refused_while_the_first_runs(
    tmp_path: Path,
) -> None:
    refused = []

    def another(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (1, 1):
            with pytest.raises(InputError, match="another training is writing") as caught:
                run(tmp_path)
            refused.append(caught)

    _, result = run(tmp_path, epochs=2, report=another)
    assert len(refused) == 1 and result.epochs == 2
    assert run(tmp_path, epochs=3)[1].epochs == 3  # nobody writes any more


def test_more_epochs_can_be_asked_of_a_finished_run(tmp_path: Path) -> None:
    run(tmp_path / "two", epochs=2)
    longer, _ = run(tmp_path / "two", epochs=6)
    straight, _ = run(tmp_path / "six", epochs=6)
    assert torch.equal(weights(longer), weights(straight))


def test_a_signal_that_reaches_a_process_twice_still_leaves_a_checkpoint(tmp_path: Path) -> None:
    # As when a whole process group is signalled, and `launch` passes its own on.
    def stop(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (2, 3):
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, report=stop)
    assert torch.load(tmp_path / "checkpoint.pt")["state"]["step"] == 4


def test_another_configuration_or_model_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    run(tmp_path, epochs=1)
    with pytest.raises(InputError, match=r"lr = 0\.02, not 0\.5"):
        run(tmp_path, epochs=1, lr=0.5)
    with pytest.raises(InputError, match="another model"):
        run(tmp_path, epochs=1, model=nn.Linear(2, 2))


def test_other_settings_or_examples_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    def go_on(settings: dict[str, Any], examples: int = 60, epochs: int = 1) -> TrainingResult:
        config = TrainingConfig(epochs=epochs, batch_size=8)
        sets = Sums(examples, 0), Sums(20, 1)
        return train(SumModel(), SumTask(), *sets, config, tmp_path, settings=settings)

    begun = {"data": {"samples": "a", "soft_targets": 0.0, "parts": (1, 2), "start": None}}
    go_on(begun)
    toml = (tmp_path / "config.toml").read_text()
    with pytest.raises(InputError, match=r"with data\.samples = 'a', not 'b': go on with that"):
        go_on({"data": {**begun["data"], "samples": "b"}})
    with pytest.raises(InputError, match=r"data\.soft_targets = 0\.0, not 0\.5"):
        go_on({"data": {**begun["data"], "soft_targets": 0.5}})
    with pytest.raises(InputError, match=r"examples\.train = 60, not 59"):
        go_on(begun, examples=59)
    assert (tmp_path / "config.toml").read_text() == toml
    assert go_on(begun, epochs=2).epochs == 2
    # A checkpoint of a version that did not keep them agrees with any.
    checkpoint = torch.load(tmp_path / "checkpoint.pt")
    del checkpoint["settings"]
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    assert go_on({"data": {"samples": "b"}}, epochs=3).epochs == 3


@pytest.mark.parametrize("content", [{"weight": torch.ones(2)}, torch.ones(2), [1]], ids=str)
def test_a_checkpoint_of_something_else_is_answered_with_one_sentence(
    tmp_path: Path, content: Any
) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match=r"checkpoint\.pt is not the checkpoint of a run"):
        run(tmp_path)


@pytest.mark.parametrize("name", ["epochs", "batch_size", "epoch_size", "chunk"])
def test_what_is_counted_is_at_least_one(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1, not 0"):
        TrainingConfig(**{name: 0})


@pytest.mark.parametrize("device", ["cuda:99", "sundial"])
def test_a_device_that_is_not_there_is_named(tmp_path: Path, device: str) -> None:
    with pytest.raises(InputError, match=f"no device '{device}' here"):
        run(tmp_path, device=device)


def test_chunks_of_a_batch_give_the_same_weights(tmp_path: Path) -> None:
    model = SumModel()
    model.weights[1].p = 0.0
    whole, _ = run(tmp_path / "whole", model=model)
    other = SumModel()
    other.weights[1].p = 0.0
    chunked, _ = run(tmp_path / "chunked", model=other, chunk=3)
    torch.testing.assert_close(weights(whole), weights(chunked), rtol=1e-4, atol=1e-6)


def test_the_rate_falls_after_patience_and_training_stops_after_more(tmp_path: Path) -> None:
    _, result = run(tmp_path, epochs=100, lr=5.0, patience=2, stop_patience=5)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert result.stopped == "no improvement"
    assert len(lines) == result.best["epoch"] + 5
    assert lines[-1]["lr"] == pytest.approx(lines[int(result.best["epoch"]) - 1]["lr"] * 0.2**2)


def test_a_budget_ends_in_time_with_a_validated_model(tmp_path: Path) -> None:
    steps = []

    def slow(progress: Progress) -> None:
        steps.append(progress)
        time.sleep(0.02)

    _, result = run(tmp_path, report=slow, epochs=100_000, stop_patience=100_000, budget_seconds=1)
    assert result.stopped == "budget" and result.seconds >= 1 and result.best["loss"] > 0
    assert len(steps) <= 1 / 0.02 + 2  # each took at least that long, however slow the machine


def test_a_loss_that_is_not_a_number_stops_and_names_the_examples(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"became nan in epoch 1 on graphs .*\b17\b"):
        train(SumModel(), SumTask(), Sums(60, 0, bad=17), Sums(9, 1), TrainingConfig(), tmp_path)


def test_a_full_disk_is_reported_with_the_file(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    (tmp_path / "checkpoint.part").symlink_to("/dev/full")
    with pytest.raises(WorkError, match=r"checkpoint\.pt could not be written.*disk space"):
        run(tmp_path, epochs=1)


def in_a_group(folder: Path, stop_at: int | None = None) -> tuple[Tensor, TrainingResult]:
    def stop(progress: Progress) -> None:
        if progress.epoch == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    with process_group("cpu"):
        model = SumModel()
        model.weights[1].p = 0.0
        model, result = run(folder, report=stop, model=model, batch_size=7)
    return weights(model), result


def test_two_processes_give_the_result_of_one(tmp_path: Path) -> None:
    alone, result_alone = in_a_group(tmp_path / "one")
    together, result = launch(in_a_group, (tmp_path / "two",), 2)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert result.best["loss"] == pytest.approx(result_alone.best["loss"], rel=1e-4)


def zeros(count: int) -> Tensor:
    return torch.zeros(count)


def test_a_result_larger_than_a_pipe_is_received() -> None:
    results: list[Tensor] = []
    thread = threading.Thread(
        target=lambda: results.append(launch(zeros, (10**6,), 1)), daemon=True
    )
    thread.start()
    thread.join(timeout=120)  # it used to wait forever
    assert [len(result) for result in results] == [10**6]


def train_slowly(folder: Path) -> None:
    with process_group("cpu"):
        run(folder, report=lambda _: time.sleep(0.05), epochs=10**6, stop_patience=10**6)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["asked", "killed"])
def test_processes_end_with_a_checkpoint_when_the_one_that_started_them_is(
    tmp_path: Path, how: signal.Signals
) -> None:
    program = (
        "import pathlib, sys\n"
        "from test_training import launch, train_slowly\n"
        "launch(train_slowly, (pathlib.Path(sys.argv[1]),), 2)\n"
    )
    tests = Path(__file__).parent
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parents[1]}", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "checkpoint.pt").exists() and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(how)
        # Their output ends only when the last of them has ended.
        _, errors = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode != 0
    assert how == signal.SIGKILL or errors.splitlines()[-1] == "KeyboardInterrupt"
    # At the end of an epoch a checkpoint is at its step 0.
    assert torch.load(tmp_path / "checkpoint.pt")["state"]["step"] > 0


def test_torchrun_gives_the_result_of_one_process(tmp_path: Path) -> None:
    alone, _ = in_a_group(tmp_path / "one")
    (tmp_path / "script.py").write_text(
        "import os, pathlib, torch\n"
        "from test_training import in_a_group\n"
        "weights, _ = in_a_group(pathlib.Path('two'))\n"
        "torch.save([weights, int(os.environ['WORLD_SIZE'])], os.environ['RANK'])\n"
    )
    tests = Path(__file__).parent
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "script.py",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tests}:{tests.parents[1]}", "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )  # fmt: skip
    for rank in ("0", "1"):
        together, processes = torch.load(tmp_path / rank)
        assert processes == 2
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_resume_as_if_never_stopped(tmp_path: Path) -> None:
    straight, _ = launch(in_a_group, (tmp_path / "straight",), 2)
    with pytest.raises(KeyboardInterrupt):
        launch(in_a_group, (tmp_path / "stopped", 3), 2)
    resumed, _ = launch(in_a_group, (tmp_path / "stopped",), 2)
    assert torch.equal(resumed, straight)
