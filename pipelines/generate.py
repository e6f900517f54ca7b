"""Generating the instances of a problem family, split by split.

A split's folder holds `instance_0001.lp` and so on, and `manifest.json` with all that decides what
is in them. What is there already is not made again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from instances import FAMILIES
from instances.order import Order, fulfil
from learn2branch.errors import InputError, WorkError
from pipelines import parallel
from pipelines.inputs import is_instance
from pipelines.progress import track

MANIFEST = "manifest.json"
_STALE_SECONDS = 3600.0


def generate(
    problem: str,
    preset: str = "paper",
    split: str | Sequence[str] | None = None,
    count: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    out: Path | str = "data",
    *,
    parameters: Mapping[str, Any] | None = None,
    file_format: str = "lp",
) -> list[Path]:
    """Generate instances 1 to `count` of the splits and return their files, made now or before.

    Without a split all those of the preset are meant, without a count as many as it says.
    `parameters` changes some of the family's parameters. A folder whose manifest says anything
    else is refused.
    """
    if problem not in FAMILIES:
        raise InputError(f"{problem} is not a family: expected one of {', '.join(FAMILIES)}")
    family, changes = FAMILIES[problem], dict(parameters or {})
    splits = (split,) if isinstance(split, str) else tuple(split or family.splits(preset))
    paths: list[Path] = []
    tasks: list[Order] = []
    for name in splits:
        description = {
            **family.describe(preset, name, seed, changes),
            "file_format": file_format,
        }
        folder = Path(out) / problem / preset / name
        _claim(folder, description)
        for k in range(1, (count or family.count(preset, name)) + 1):
            path = folder / f"instance_{k:04d}.{file_format}"
            paths.append(path)
            if not path.exists():
                tasks.append(Order(problem, preset, name, seed, k, changes, path))
    errors = []
    with track(f"generating {problem}", len(paths), len(paths) - len(tasks)) as progress:
        for outcome in parallel.run(fulfil, tasks, jobs=jobs):
            progress.advance()
            if outcome.error is not None:
                errors.append(f"{tasks[outcome.index].path}: {outcome.error}")
    if errors:
        raise WorkError(f"{len(errors)} of {len(paths)} instances failed, the first {errors[0]}")
    return paths


def _claim(folder: Path, description: dict[str, Any]) -> None:
    """Say in the folder's manifest what it is for, or refuse if it is for something else."""
    manifest = folder / MANIFEST
    if manifest.exists():
        try:
            found = json.loads(manifest.read_text())
            differing = [key for key in description if found.get(key) != description[key]]
        except (ValueError, AttributeError):
            raise InputError(
                f"{manifest} is not a manifest: move it away, or choose another --out"
            ) from None
        if differing:
            key = differing[0]
            raise InputError(
                f"{folder} holds instances of {key} {_brief(found.get(key), description[key])}, "
                f"not {_brief(description[key], found.get(key))}: choose another --out"
            )
        _sweep(folder)
        return
    if folder.exists() and any(is_instance(file) for file in folder.iterdir()):
        raise InputError(f"{folder} holds instances but no {MANIFEST}: choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{os.getpid()}-{MANIFEST}"
    part.write_text(json.dumps(description, indent=2) + "\n")
    os.replace(part, manifest)


def _brief(value: Any, other: Any) -> str:
    """Show a value, of parameters only those that are not as in the other."""
    if isinstance(value, dict) and isinstance(other, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items() if other.get(k) != v)
    return str(value)


def _sweep(folder: Path) -> None:
    """Remove what a killed run left half-written; a living one finishes a file within the hour."""
    for part in folder.glob(".*-*"):
        if time.time() - part.stat().st_mtime > _STALE_SECONDS:
            part.unlink(missing_ok=True)
