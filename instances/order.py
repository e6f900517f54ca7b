"""One instance to be made: all that a worker process has to be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from instances import FAMILIES
from instances.writing import write


@dataclass(frozen=True)
class Order:
    """Which instance, and where to write it."""

    family: str
    preset: str
    split: str
    seed: int
    k: int  # 1, 2, …
    changes: Mapping[str, Any]  # to the family's parameters
    path: Path


def fulfil(order: Order) -> None:
    """Make the instance and write its file."""
    family = FAMILIES[order.family]
    milp = family.instance(order.preset, order.split, order.seed, order.k, order.changes)
    write(milp, order.path)
