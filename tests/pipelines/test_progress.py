"""What long work says while it runs."""

import pytest

from pipelines import progress


def test_what_an_earlier_run_did_says_nothing_about_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    with progress.track("counting", 1000, before=800) as tracker:
        clock[0] = 20.0
        tracker.advance(10)
    assert "counting: 810/1000 (20 s, about 380 s left)" in capsys.readouterr().err
