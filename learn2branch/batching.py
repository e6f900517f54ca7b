"""Examples on their way to a model: joined into batches, ahead of the training."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch

B = TypeVar("B", bound="Batch")


class Batch(Protocol):
    """Some examples as one, in whatever form the task takes them."""

    def to(self: B, device: torch.device | str) -> B:
        """Copy to a device."""
        ...

    def __len__(self) -> int:
        """Return how many examples there are."""
        ...


class Dataset(Protocol):
    """Examples by number; `batch` is called from a thread of its own, ahead of the training.

    A dataset may also have `describe(indices) -> str`, which names examples in error messages.
    """

    def __len__(self) -> int:
        """Return how many examples there are."""
        ...

    def batch(self, indices: Sequence[int]) -> Any:
        """Return these examples as one `Batch`."""
        ...


def parts(indices: Sequence[int], size: int | None) -> list[Sequence[int]]:
    """Cut indices into parts of a size, the last one smaller; without a size into one."""
    size = size or max(len(indices), 1)
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def batches(
    dataset: Dataset, parts: Iterable[Sequence[int]]
) -> Generator[tuple[Sequence[int], Any, float], None, None]:
    """Yield (indices, batch, seconds waited for it); a thread prepares two batches ahead."""
    with ThreadPoolExecutor(1) as pool:
        ahead: deque[tuple[Sequence[int], Future[Any]]] = deque()
        rest = iter(parts)
        try:
            while True:
                for indices in itertools.islice(rest, 3 - len(ahead)):
                    ahead.append((indices, pool.submit(dataset.batch, indices)))
                if not ahead:
                    return
                indices, future = ahead.popleft()
                began = time.perf_counter()
                batch = future.result()
                yield indices, batch, time.perf_counter() - began
        finally:
            pool.shutdown(cancel_futures=True)
