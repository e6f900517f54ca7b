"""Learning to branch by imitation: batches of samples, the loss and the accuracies.

The dataset reads shards as they are needed and keeps those it has, up to a limit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.metrics import accuracy_at
from learn2branch.samples import Sample
from learn2branch.shards import ForeignShardError, ShardError, read_header, read_shard

RANKS = (1, 3, 5, 10)  # the k of acc@k


@dataclass(frozen=True)
class SampleBatch:
    """Samples as one graph; their candidates lie in a row, sample by sample."""

    graph: BipartiteGraph
    candidates: Tensor  # (c,) int64, variables of the batched graph
    candidate_ptr: Tensor  # (samples + 1,) int64, where each sample's candidates begin
    scores: Tensor  # (c,) float64, the expert's
    choices: Tensor  # (samples,) int64, positions in `candidates`
    pseudocosts: Tensor | None  # (c,) float64

    def __len__(self) -> int:
        return len(self.choices)

    def to(self, device: torch.device | str) -> SampleBatch:
        """Copy to a device."""
        return SampleBatch(
            self.graph.to(device),
            self.candidates.to(device),
            self.candidate_ptr.to(device),
            self.scores.to(device),
            self.choices.to(device),
            None if self.pseudocosts is None else self.pseudocosts.to(device),
        )

    @staticmethod
    def of(samples: Sequence[Sample]) -> SampleBatch:
        """Join samples."""
        graph = BipartiteGraph.batch([sample.state for sample in samples])
        sizes = torch.tensor([len(sample.candidates) for sample in samples])
        ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        offsets = graph.variable_ptr[:-1].repeat_interleave(sizes)
        pseudocosts = [s.pseudocosts for s in samples if s.pseudocosts is not None]
        return SampleBatch(
            graph,
            torch.cat([sample.candidates for sample in samples]) + offsets,
            ptr,
            torch.cat([sample.scores for sample in samples]),
            torch.tensor([sample.choice for sample in samples]) + ptr[:-1],
            torch.cat(pseudocosts) if len(pseudocosts) == len(samples) else None,
        )


class SampleSet:
    """The samples of a split, from its folder of shards.

    Opening it reads the headers: a shard that is truncated, or whose header was altered, is left
    out and named in `problems`; one of another version or schema means that the whole store is, and
    is refused. Samples that were altered are noticed when they are read: ShardError names the file.
    """

    def __init__(self, folder: Path | str, cache_bytes: int = 2 << 30) -> None:
        self.folder = Path(folder)
        self.problems: list[str] = []
        self.shards: list[Path] = []
        counts: list[int] = []
        for path in sorted(self.folder.glob("episode-*.npz")):
            try:
                header = read_header(path)
            except ForeignShardError:
                raise
            except ShardError as error:
                self.problems.append(str(error))
                continue
            if header["samples"]:
                self.shards.append(path)
                counts.append(header["samples"])
        if not self.shards:
            raise InputError(f"there are no samples in {self.folder}: run l2b collect first")
        self._ends = np.cumsum(counts)
        self._cache: OrderedDict[int, list[Sample]] = OrderedDict()
        self._cache_bytes, self._cached = cache_bytes, 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        shard, position = self._locate(index)
        return self._samples(shard)[position]

    def batch(self, indices: Sequence[int]) -> SampleBatch:
        """Read samples and join them."""
        return SampleBatch.of([self[index] for index in indices])

    def describe(self, indices: Sequence[int]) -> str:
        """Name the shards of some samples."""
        shards = sorted({self.shards[self._locate(index)[0]].name for index in indices})
        more = f" and {len(shards) - 5} more" if len(shards) > 5 else ""
        return f"samples of {self.folder}/: {', '.join(shards[:5])}{more}"

    def _locate(self, index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return shard, index - (int(self._ends[shard - 1]) if shard else 0)

    def _samples(self, shard: int) -> list[Sample]:
        with self._lock:
            if shard in self._cache:
                self._cache.move_to_end(shard)
                return self._cache[shard]
        samples = read_shard(self.shards[shard]).samples
        with self._lock:
            if shard not in self._cache:
                self._cache[shard] = samples
                self._cached += _bytes(samples)
            while self._cached > self._cache_bytes and len(self._cache) > 1:
                self._cached -= _bytes(self._cache.popitem(last=False)[1])
        return samples


def _bytes(samples: Sequence[Sample]) -> int:
    """Return the memory of a shard's samples; those with the same matrix share it."""
    matrices = {id(s.state.edge_index): s.state.num_edges * 20 for s in samples}
    nodes = sum(s.state.num_variables * 76 + s.state.num_constraints * 20 for s in samples)
    return sum(matrices.values()) + nodes


@dataclass(frozen=True)
class Imitation:
    """The task: give what the expert rates best the highest score among the candidates."""

    soft_targets: float = 0.0  # temperature of targets from the expert's scores; 0: its choice only

    def step(self, model: nn.Module, batch: SampleBatch) -> tuple[Tensor, dict[str, Any]]:
        """Return the summed cross-entropy and how often acc@k was a hit."""
        logits = model(batch.graph, batch.candidates)
        loss = self.loss(logits, batch)
        with torch.no_grad():
            return loss, accuracies(logits, batch)

    def loss(self, logits: Tensor, batch: SampleBatch) -> Tensor:
        """Return the cross-entropy over each sample's candidates, summed over the samples.

        Where the expert rates several candidates best, any of them is right: what counts is the
        probability that they have together.
        """
        best = batch.scores[batch.choices].repeat_interleave(batch.candidate_ptr.diff())
        if self.soft_targets <= 0:
            of_best = logits.masked_fill(batch.scores < best, -torch.inf)
            ptr = batch.candidate_ptr
            return (_log_sum_exp(logits, ptr) - _log_sum_exp(of_best, ptr)).sum()
        wishes = (batch.scores / best.clamp(min=1e-300)).to(logits.dtype) / self.soft_targets
        targets = _log_softmax(wishes, batch.candidate_ptr).exp()
        return -(targets * _log_softmax(logits, batch.candidate_ptr)).sum()


def accuracies(predicted: Tensor, batch: SampleBatch) -> dict[str, Tensor]:
    """Return acc@k summed over the samples, for each k of RANKS; ties of the expert are right."""
    return {
        f"acc@{k}": accuracy_at(k, predicted, batch.scores, batch.candidate_ptr).sum()
        for k in RANKS
    }


def baselines(samples: SampleSet, batch_size: int = 64) -> dict[str, dict[str, float]]:
    """Return acc@k of what needs no learning, on the same samples."""
    fractionality = STATE.variable.index("fractionality")
    sums: dict[str, dict[str, float]] = {}
    for start in range(0, len(samples), batch_size):
        batch = samples.batch(range(start, min(start + batch_size, len(samples))))
        x = batch.graph.variable_features[batch.candidates, fractionality]
        predictions = {"random": torch.zeros_like(x), "most fractional": -(x - 0.5).abs()}
        if batch.pseudocosts is not None:
            predictions["pseudocost"] = batch.pseudocosts
        for name, predicted in predictions.items():
            row = sums.setdefault(name, dict.fromkeys((f"acc@{k}" for k in RANKS), 0.0))
            for metric, value in accuracies(predicted, batch).items():
                row[metric] += float(value)
    return {
        name: {metric: value / len(samples) for metric, value in row.items()}
        for name, row in sums.items()
    }


def _log_softmax(logits: Tensor, ptr: Tensor) -> Tensor:
    """Return log-softmax within each segment."""
    return logits - _log_sum_exp(logits, ptr).repeat_interleave(ptr.diff())


def _log_sum_exp(logits: Tensor, ptr: Tensor) -> Tensor:
    """Return log(sum(exp)) of each segment, which has a finite element."""
    sizes = ptr.diff()
    segment = torch.arange(len(sizes), device=logits.device).repeat_interleave(sizes)
    top = torch.full((len(sizes),), -torch.inf, dtype=logits.dtype, device=logits.device)
    top = top.scatter_reduce(0, segment, logits.detach(), "amax")
    total = torch.zeros_like(top).index_add(0, segment, (logits - top[segment]).exp())
    return total.log() + top
