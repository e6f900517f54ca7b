"""Random draws that are the same on every machine and with every version of NumPy.

NumPy promises that the raw bits of Philox never change, but not what its distributions make of
them. So the few distributions a family needs are made here, from the raw bits.
"""

from __future__ import annotations

import hashlib

import numpy as np

from instances.milp import Floats, Ints


class Draw:
    """Independent draws from a stream named by words and numbers, e.g. ("setcover", "test", 7)."""

    def __init__(self, *name: str | int) -> None:
        digest = hashlib.sha256(repr(name).encode()).digest()
        self._bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def uniform(self, size: int | tuple[int, ...]) -> Floats:
        """Return numbers in [0, 1) with 53 random bits."""
        count = int(np.prod(size))
        bits = self._bits.random_raw(count) >> np.uint64(11)
        return (bits.astype(np.float64) * 2.0**-53).reshape(size)

    def unit(self) -> float:
        """Return one number in [0, 1)."""
        return float(int(self._bits.random_raw()) >> 11) * 2.0**-53

    def integers(self, low: int, high: int, size: int | tuple[int, ...]) -> Ints:
        """Return whole numbers, `low` and `high` included."""
        return low + np.floor(self.uniform(size) * (high - low + 1)).astype(np.int64)

    def permutation(self, n: int) -> Ints:
        """Return 0..n-1 in random order."""
        return np.argsort(self._bits.random_raw(n), kind="stable").astype(np.int64)

    def distinct(self, n: int, counts: Ints, start: Ints | None = None) -> Ints:
        """Return for every group as many numbers out of 0..n-1 as it counts, none twice in a group.

        The groups follow each other in one flat array, which may already `start` with some of them.
        """
        # A number that its group has already is drawn again, until none is left: given those that
        # stay, each new one is uniform over the rest, as when drawing without replacement.
        total = int(counts.sum())
        offset = np.repeat(np.arange(len(counts), dtype=np.int64) * n, counts)
        values = np.empty(total, dtype=np.int64)
        kept = 0 if start is None else len(start)
        if start is not None:
            values[:kept] = start
        place = np.arange(total, dtype=np.int32)
        first = np.empty(len(counts) * n, dtype=np.int32)  # where a group's number comes first
        again = np.arange(kept, total)
        while len(again):
            values[again] = self.integers(0, n - 1, len(again))
            keys = values + offset
            first[keys[::-1]] = place[::-1]  # of several writes to one key the last stays
            again = np.flatnonzero(first[keys] != place)
        return values
