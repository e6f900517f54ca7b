"""What long work says while it runs: a live bar on a terminal, plain lines elsewhere.

Everything here goes to stderr, so that a command's result can be piped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

console = Console(stderr=True, highlight=False, soft_wrap=True)
_SECONDS_BETWEEN_LINES = 10.0
_verbosity = 0


def set_verbosity(level: int) -> None:
    """Set how much is said: -1 only results and errors, 0 progress, 1 and more details."""
    global _verbosity
    _verbosity = level


def verbosity() -> int:
    """Return how much is said, to hand it on to another process."""
    return _verbosity


def is_verbose() -> bool:
    """Tell whether the user asked for details."""
    return _verbosity >= 1


def say(message: str) -> None:
    """Tell the user something, unless they asked for quiet."""
    if _verbosity >= 0:
        warn(message)


def warn(message: str) -> None:
    """Tell the user what they must know even if they asked for quiet."""
    console.print(message, markup=False)


def detail(message: str) -> None:
    """Tell the user something only if they asked for details."""
    if is_verbose():
        console.print(message, markup=False)


class Tracker:
    """The progress of one piece of work: `advance` as it gets done, `note` what it found."""

    def __init__(self, what: str, total: int | None, before: int) -> None:
        self.what, self.total, self.done, self.text = what, total, before, ""
        self.before = before  # steps that an earlier run did, which say nothing about speed
        self.started = self._last_line = time.monotonic()
        self._printed = 0  # steps done at the last line

    def advance(self, steps: int = 1, note: str | None = None) -> None:
        """Count steps as done, with an optional note shown beside them."""
        self.done += steps
        if note is not None:
            self.text = note
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._print_line(now)

    def _close(self) -> None:
        now = time.monotonic()
        if now - self.started >= _SECONDS_BETWEEN_LINES and self._printed != self.done:
            self._print_line(now)

    def _print_line(self, now: float) -> None:
        if _verbosity < 0:
            return
        self._last_line, self._printed = now, self.done
        elapsed = now - self.started
        of_total, left = "", ""
        if self.total:
            of_total = f"/{self.total}"
            if self.before < self.done < self.total:
                each = elapsed / (self.done - self.before)
                left = f", about {each * (self.total - self.done):.0f} s left"
        note = f" {self.text}" if self.text else ""
        console.print(
            f"{self.what}: {self.done}{of_total}{note} ({elapsed:.0f} s{left})", markup=False
        )


class _Bar(Tracker):
    def __init__(self, what: str, total: int | None, before: int, bar: Progress) -> None:
        super().__init__(what, total, before)
        self._bar = bar
        self._task = bar.add_task(what, total=total, completed=before, note="")

    def _show(self) -> None:
        self._bar.update(self._task, completed=self.done, note=self.text)


@contextmanager
def track(what: str, total: int | None = None, before: int = 0) -> Iterator[Tracker]:
    """Show the progress of a piece of work while the block runs; `before` steps are done."""
    if _verbosity < 0 or not console.is_terminal:
        tracker = Tracker(what, total, before)
        yield tracker
        tracker._close()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # A result that goes elsewhere must not be drawn above the bar instead.
    with Progress(*columns, console=console, redirect_stdout=sys.stdout.isatty()) as bar:
        yield _Bar(what, total, before, bar)
