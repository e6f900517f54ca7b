"""`l2b collect`, `l2b samples` and `l2b train`, one after the other, as a user types them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def l2b(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run the command in a folder; return what it printed, with the errors."""
    done = subprocess.run(
        [sys.executable, "-c", "from pipelines.cli import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("work")


def test_training_without_samples_says_what_to_do(tmp_path: Path) -> None:
    said = l2b(tmp_path, "train", code=2)
    assert said == (
        "Error: there are no samples in samples: run l2b collect first, "
        "or name them with --samples\n"
    )


def test_collect_then_train_with_no_further_options_gives_a_policy(folder: Path) -> None:
    few = ("--preset", "tiny", "--samples", "24", "--jobs", "2", "-q")
    said = l2b(folder, "collect", "--problem", "setcover", *few)
    assert "samples/setcover/train: 24 samples" in said
    assert (folder / "data/setcover/tiny/train/manifest.json").exists()
    said = l2b(folder, "samples", "info", "samples/setcover", "--verify")
    assert "samples/setcover/valid: 4 samples" in said and "0 refused" in said
    fast = ["train", "--epochs", "1", "--batch-size", "8", "--workers", "1", "--size", "small"]
    said = l2b(folder, *fast)
    assert "runs/setcover-dualattn-small/policy.pt: 1 epochs" in said
    for row in ("policy", "random", "most fractional", "pseudocost"):
        assert f"\n{row}" in said
    run = folder / "runs/setcover-dualattn-small"
    figures = json.loads((run / "metrics.jsonl").read_text())
    assert figures["valid/acc@10"] >= figures["valid/acc@1"] >= 0
    assert {path.name for path in run.iterdir()} >= {
        "config.toml", "metrics.jsonl", "checkpoint.pt", "policy.pt", "learning_curve.png",
        "test.json",
    }  # fmt: skip
    # The written configuration is enough to do it again.
    said = l2b(
        folder, "train", "--config", "runs/setcover-dualattn-small/config.toml", "--workers", "1"
    )
    assert "runs/setcover-dualattn-small-2/policy.pt: 1 epochs" in said
    assert (folder / "runs/setcover-dualattn-small-2/test.json").read_text() == (
        run / "test.json"
    ).read_text()


def test_a_damaged_shard_is_named_by_verify(folder: Path) -> None:
    shard = next((folder / "samples/setcover/test").glob("*.npz"))
    content = shard.read_bytes()
    shard.write_bytes(content[:-7])
    said = l2b(folder, "samples", "info", "samples/setcover", "--verify", code=1)
    shard.write_bytes(content)
    assert f"{shard.name} is truncated" in said


def test_a_mistyped_budget_is_refused(tmp_path: Path) -> None:
    assert "not a time such as 90s, 45m or 1h30m" in l2b(
        tmp_path, "train", "--budget", "soon", code=2
    )
