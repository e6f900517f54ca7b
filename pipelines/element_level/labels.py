"""Labels on disk: an instance's graph and a pool of its good solutions, in one file of arrays.

docs/element-level.md describes the file. Nothing in it is pickled, and it appears only when whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learn2branch.errors import InputError
from learn2branch.features import ELEMENT
from learn2branch.graph import BipartiteGraph
from learn2branch.runs import replace_file

FORMAT = 1  # of the file; raised whenever an older version could not read it
SUFFIX = ".npz"

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Labels:
    """What is known about one instance."""

    graph: BipartiteGraph
    binaries: npt.NDArray[np.int64]  # (b,), variables of the graph
    solutions: Bools  # (s, b), best first
    objectives: Floats  # (s,), of the solutions
    maximise: bool
    seconds: Floats  # (i,), when each incumbent was found
    incumbents: Floats  # (i,), their objective values
    facts: dict[str, Any]  # instance, status, bound, and the settings of the collection

    @property
    def best(self) -> Bools:
        """The binaries in the best solution; (b,)."""
        best: Bools = self.solutions[0]
        return best

    def target(self, temperature: float) -> Floats:
        """Return the weighted mean of the pool, (b,); better solutions weigh more.

        Weights are a softmax of minus the gap to the best, in units of `temperature` times the
        best objective value. The weighted sum of the solutions' cross-entropies equals the
        cross-entropy against this mean, as it is linear in the label: one target does for all.
        """
        unit = temperature * max(abs(self.objectives[0]), 1e-9)
        weights = np.exp(-np.abs(self.objectives - self.objectives[0]) / unit)
        mean: Floats = weights @ self.solutions / weights.sum()
        return np.minimum(mean, 1.0)  # which rounding can exceed

    def write(self, path: Path) -> None:
        """Write the file."""
        graph = self.graph
        names = list(self.facts)
        buffer = io.BytesIO()
        np.savez_compressed(
            buffer,
            format=np.int64(FORMAT),
            schema=np.array(ELEMENT.hash),
            constraint_features=graph.constraint_features.numpy(),
            edge_index=graph.edge_index.numpy().astype(np.int32),
            edge_values=graph.edge_values.numpy(),
            variable_features=graph.variable_features.numpy(),
            binaries=self.binaries.astype(np.int32),
            solutions=np.packbits(self.solutions, axis=1),
            objectives=self.objectives,
            maximise=np.bool_(self.maximise),
            seconds=self.seconds,
            incumbents=self.incumbents,
            fact_names=np.array(names),
            fact_values=np.array([str(self.facts[name]) for name in names]),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, buffer.getvalue())


def read_labels(path: Path) -> Labels:
    """Read one file."""
    with _opened(path) as arrays:
        binaries = arrays["binaries"].astype(np.int64)
        packed = arrays["solutions"]
        return Labels(
            BipartiteGraph(
                torch.from_numpy(arrays["constraint_features"]),
                torch.from_numpy(arrays["edge_index"].astype(np.int64)),
                torch.from_numpy(arrays["edge_values"]),
                torch.from_numpy(arrays["variable_features"]),
            ),
            binaries,
            np.unpackbits(packed, axis=1, count=len(binaries)).astype(bool),
            arrays["objectives"],
            bool(arrays["maximise"]),
            arrays["seconds"],
            arrays["incumbents"],
            _facts(arrays),
        )


def read_facts(path: Path) -> dict[str, str]:
    """Read how the labels of one file were made, and nothing else of it."""
    with _opened(path) as arrays:
        return _facts(arrays)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as arrays:
            if int(arrays["format"]) != FORMAT:
                raise InputError(
                    f"{path} has label format {int(arrays['format'])}, this version reads "
                    f"{FORMAT}: collect again"
                )
            if str(arrays["schema"]) != ELEMENT.hash:
                raise InputError(f"{path} holds other features than this version: collect again")
            yield arrays
    except (InputError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a damaged archive can raise nearly anything
        raise InputError(f"{path} is not a file of labels: delete it and collect again") from error


def _facts(arrays: Any) -> dict[str, str]:
    names, values = arrays["fact_names"].tolist(), arrays["fact_values"].tolist()
    return dict(zip(names, values, strict=True))


def label_files(folder: Path | str) -> list[Path]:
    """Return the files of labels in a folder, sorted."""
    files = sorted(Path(folder).glob(f"*{SUFFIX}"))
    return [file for file in files if not file.name.startswith(".")]


def label_name(instance: Path) -> str:
    """Return the name of the file that holds an instance's labels."""
    return instance.name.split(".")[0] + SUFFIX
