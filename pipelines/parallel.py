"""The one place that knows how work is spread over processes: joblib and its backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import joblib

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of one task: its value, or one sentence on why there is none."""

    index: int  # position in the list of tasks
    value: Result | None = None
    error: str | None = None


def run(
    function: Callable[[Task], Result], tasks: Sequence[Task], *, jobs: int = 1
) -> Iterator[Outcome[Result]]:
    """Apply a function to every task, in processes, and yield outcomes as they come, in any order.

    A task that raises costs only itself: its outcome carries the error.
    """
    if jobs == 1 or len(tasks) <= 1:
        yield from (_attempt(function, index, task) for index, task in enumerate(tasks))
        return
    pool = joblib.Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered")
    yield from pool(joblib.delayed(_attempt)(function, i, task) for i, task in enumerate(tasks))


def _attempt(function: Callable[[Task], Result], index: int, task: Task) -> Outcome[Result]:
    try:
        return Outcome(index, value=function(task))
    except Exception as error:
        return Outcome(index, error=f"{type(error).__name__}: {error}")
