"""Describing a store of samples: what is in it, and whether all of it can be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from learn2branch.errors import InputError
from learn2branch.samples import Sample
from learn2branch.shards import ShardError, read_header, read_shard
from pipelines.progress import track

_LOOKED_AT = 200  # shards that are read for the statistics, unless all are verified


@dataclass
class Split:
    """The shards of one folder, counted."""

    folder: Path
    verified: bool
    shards: int = 0
    samples: int = 0
    bytes: int = 0
    sizes: list[tuple[int, int, int]] = field(default_factory=list)  # variables, rows, non-zeros
    candidates: list[int] = field(default_factory=list)
    best_shares: list[float] = field(default_factory=list)  # candidates that reach the best score
    spreads: list[float] = field(default_factory=list)  # median score over best score
    made_by: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, sample: Sample) -> None:
        """Count a sample that was read."""
        state, scores = sample.state, sample.scores.numpy()
        self.sizes.append((state.num_variables, state.num_constraints, state.num_edges))
        self.candidates.append(len(scores))
        self.best_shares.append(float((scores == scores.max()).mean()))
        self.spreads.append(float(np.median(scores) / max(scores.max(), 1e-300)))

    def lines(self) -> list[str]:
        """Return the description, a fact a line."""
        each = self.bytes / max(self.samples, 1) / 1024
        lines = [
            f"{self.folder}: {self.samples} samples in {self.shards} shards, "
            f"{self.bytes / 1e6:.1f} MB, {each:.1f} KiB a sample"
        ]
        lines += [f"  made by {what}: {count} shards" for what, count in self.made_by.items()]
        if self.sizes:
            n, m, e = (f"{np.median(column):.0f}" for column in zip(*self.sizes, strict=True))
            low, middle, high = np.percentile(self.candidates, [0, 50, 100])
            lines += [
                f"  median state: {n} variables, {m} constraints, {e} non-zeros",
                f"  candidates: {low:.0f} to {high:.0f}, median {middle:.0f}",
                f"  expert: {100 * np.mean(self.best_shares):.1f} % of candidates reach the best "
                f"score, the median candidate {100 * np.median(self.spreads):.1f} % of it",
            ]
        if self.verified:
            lines.append(f"  verified: {self.shards} shards read, {len(self.problems)} refused")
        return lines + [f"  problem: {problem}" for problem in self.problems]


def describe(folder: Path | str, verify: bool = False) -> Iterator[Split]:
    """Yield a description of every folder of shards under a store, or under several."""
    folders = sorted({path.parent for path in Path(folder).rglob("episode-*.npz")})
    if not folders:
        raise InputError(
            f"there are no samples in {folder}: expected a folder that l2b collect wrote"
        )
    for place in folders:
        yield _describe(place, verify)


def _describe(folder: Path, verify: bool) -> Split:
    split = Split(folder, verify)
    paths = sorted(folder.glob("episode-*.npz"))
    with track(f"reading {folder}", len(paths)) as progress:
        for number, path in enumerate(paths):
            try:
                header = read_header(path)
                if verify or number % max(1, len(paths) // _LOOKED_AT) == 0:
                    for sample in read_shard(path).samples:
                        split.add(sample)
            except ShardError as error:
                split.problems.append(str(error))
            else:
                split.shards += 1
                split.samples += header["samples"]
                split.bytes += path.stat().st_size
                made = header["provenance"]
                split.made_by[f"SCIP {made.get('scip')}, seed {made.get('collection_seed')}"] += 1
            progress.advance()
    return split
