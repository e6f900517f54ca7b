"""Shared by all tests: one thread, and the small real instances where they are present."""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def usual_verbosity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every test as a new process would: neither quiet nor verbose."""
    monkeypatch.setattr("pipelines.progress._verbosity", 0)


MIPLIB = Path(__file__).parent.parent.parent / "shared" / "miplib3"


@pytest.fixture(scope="session")
def miplib() -> list[Path]:
    """Return the paths of small MIPLIB 3 instances; skips where they are not installed."""
    files = sorted(MIPLIB.glob("*.mps.gz"))
    if not files:
        pytest.skip("the MIPLIB 3 instances are not here")
    return files
