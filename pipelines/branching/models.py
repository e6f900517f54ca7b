"""What the shipped policies are, as their own files tell it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from learn2branch.policy import find_policy, load_policy, shipped_policies
from pipelines.report.table import Table


def describe_policy(name: str | Path) -> dict[str, Any]:
    """Return the metadata of a policy, without the numbers of its normaliser."""
    path = find_policy(name)
    metadata = {k: v for k, v in load_policy(path).metadata.items() if k != "normaliser"}
    return {"file": str(path), "bytes": path.stat().st_size, **metadata}


def model_table() -> Table:
    """Return a row per shipped policy: what it is, and what its training says of it."""
    rows = []
    for name, path in shipped_policies().items():
        metadata = load_policy(path).metadata
        told = metadata.get("provenance", {})
        accuracies = told.get("test", {}).get("policy", {})
        rows.append(
            [
                name,
                told.get("family") or "–",
                _sizes(told.get("instances") or {}),
                metadata["config"]["backbone"],
                str(_samples_seen(told) or "–"),
                *(f"{accuracies[k]:.3f}" if k in accuracies else "–" for k in _ACCURACIES),
                metadata["versions"]["learn2branch"],
                f"{path.stat().st_size / 2**20:.1f}",
            ]
        )
    columns = ["name", "family", "instances", "backbone", "samples", *_ACCURACIES]
    return Table("Shipped policies", [*columns, "made by", "MiB"], rows, words=4)


def _samples_seen(provenance: dict[str, Any]) -> int:
    """Return the samples that were trained on, those of the policy it started from included."""
    before = provenance.get("start", {}).get("provenance", {})
    here: int = provenance.get("samples", {}).get("train", 0)
    return here + (_samples_seen(before) if before else 0)


_ACCURACIES = ("acc@1", "acc@5", "acc@10")  # on the test split of its samples


def _sizes(parameters: dict[str, Any]) -> str:
    """Return the sizes of the instances it was trained on: the whole numbers above 1."""
    sizes = [
        f"{value} {name}"
        for name, value in parameters.items()
        if isinstance(value, int) and value > 1 and not name.startswith(("min_", "max_"))
    ]
    return ", ".join(sizes[:2]) or "–"
