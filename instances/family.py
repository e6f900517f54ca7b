"""What a problem family is: parameters, a generator, and sizes by preset and split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from instances.drawing import Draw
from instances.milp import Milp, ParameterError

# Instances a split holds when nobody says how many. Those of `paper` are the paper's; it reports
# no validation instances, its scripts make 2,000.
COUNTS = {
    "tiny": {"train": 40, "valid": 10, "test": 10, "transfer": 10},
    "small": {"train": 400, "valid": 80, "test": 40, "transfer": 40},
    "paper": {"train": 10_000, "valid": 2_000, "test": 40, "transfer": 40},
    "element": {"train": 400, "valid": 100, "test": 100},
}

# A change to what any family draws raises this, so that old and new never mix in one folder.
GENERATOR_VERSION = 1

Sizes = Mapping[str, Any]  # split -> the family's parameters


def sizes(usual: Any, transfer: Any = None) -> Sizes:
    """Return the parameters of every split: the usual ones, and larger ones for transfer."""
    splits = dict.fromkeys(("train", "valid", "test"), usual)
    return splits if transfer is None else {**splits, "transfer": transfer}


@dataclass(frozen=True)
class Family:
    """A problem family; instance k is the same whatever else is generated, and where."""

    name: str  # as on the command line
    title: str
    parameters: type  # a frozen dataclass with defaults, one field a parameter
    generate: Callable[[Any, Draw], Milp]
    presets: Mapping[str, Sizes]
    counts: Mapping[str, Mapping[str, int]] | None = None  # where they are not COUNTS

    def splits(self, preset: str) -> tuple[str, ...]:
        """Return the splits that a preset has; not every family has a transfer split."""
        return tuple(self._sizes(preset))

    def count(self, preset: str, split: str) -> int:
        """Return how many instances a split holds unless told otherwise."""
        self.parameters_of(preset, split)
        return {**COUNTS, **(self.counts or {})}[preset][split]

    def parameters_of(
        self, preset: str, split: str, changes: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a split's parameters, some of them changed; words are read as the field's type."""
        sizes_by_split = self._sizes(preset)
        if split not in sizes_by_split:
            known = ", ".join(sizes_by_split)
            raise ParameterError(f"{self.name} has no {split} split at {preset}: expected {known}")
        return replace(sizes_by_split[split], **self._read(changes or {}))

    def instance(
        self,
        preset: str,
        split: str,
        seed: int,
        k: int,
        changes: Mapping[str, Any] | None = None,
    ) -> Milp:
        """Make instance k (1, 2, …) of a split."""
        parameters = self.parameters_of(preset, split, changes)
        # The preset names the stream too: else a small graph would be the beginning of a large one.
        return self.generate(parameters, Draw(self.name, preset, split, int(seed), int(k)))

    def describe(
        self, preset: str, split: str, seed: int, changes: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return all that decides the instances of a split, as plain numbers and words."""
        return {
            "family": self.name,
            "preset": preset,
            "split": split,
            "seed": seed,
            "generator": GENERATOR_VERSION,
            "parameters": asdict(self.parameters_of(preset, split, changes)),
        }

    def _sizes(self, preset: str) -> Sizes:
        if preset not in self.presets:
            known = ", ".join(self.presets)
            raise ParameterError(f"{self.name} has no preset {preset}: expected one of {known}")
        return self.presets[preset]

    def _read(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        types = get_type_hints(self.parameters)
        read: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in types:
                known = ", ".join(field.name for field in fields(self.parameters))
                raise ParameterError(
                    f"{self.name} has no parameter {name}: expected one of {known}"
                )
            read[name] = _as_type(name, value, types[name])
        return read


def _as_type(name: str, value: Any, kind: type) -> Any:
    if kind is bool and str(value).lower() in ("true", "false"):
        return str(value).lower() == "true"
    if kind is not bool:
        try:
            read = kind(value)
            if not isinstance(read, float) or math.isfinite(read):
                return read
        except (TypeError, ValueError):
            pass
    expected = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise ParameterError(f"parameter {name} is {value}: expected {expected}")
