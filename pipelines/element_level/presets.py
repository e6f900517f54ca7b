"""Sizes, times and search settings: what `--preset` means here, and the paper's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learn2branch.errors import InputError
from solver_plugins.primal import TrustRegion

METHODS = ("solver", "pas", "apollo")


@dataclass(frozen=True)
class ElementPreset:
    """Everything a run of the pipeline needs to know, from the instances to the search."""

    counts: Mapping[str, int]  # instances a split
    label_seconds: float  # for the pool of a training instance
    reference_seconds: float  # for the pool of a test instance: truth, and best known value
    search_seconds: float  # for each method on a test instance
    pool_size: int  # solutions to keep
    epochs: int
    batch_size: int
    model_size: str  # of `build_model`
    training_seconds: float | None = None  # at most, whatever the epochs
    sizes: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    # family -> its preset with that number of instances, and what to change in it


PRESETS = {
    "tiny": ElementPreset(
        counts={"train": 16, "valid": 4, "test": 3},
        label_seconds=1,
        reference_seconds=2,
        search_seconds=1,
        pool_size=10,
        epochs=15,
        batch_size=4,
        model_size="small",
    ),
    # Within an hour of two cores a family: pools, three trainings of both backbones, searches.
    # SCIP finishes hardly any of these sizes in the time of a search.
    "small": ElementPreset(
        counts={"train": 48, "valid": 8, "test": 8},
        label_seconds=20,
        reference_seconds=45,
        search_seconds=12,
        pool_size=50,
        epochs=100,
        batch_size=4,
        model_size="full",
        training_seconds=240,
        sizes={
            "indset": ("small", {"nodes": 1000, "affinity": 4}),
            "cauctions": ("small", {"items": 400, "bids": 1500}),
            "placement": ("paper", {}),
            "workload": ("small", {"tasks": 60, "workers": 150, "able": 30}),
        },
    ),
    "paper": ElementPreset(
        counts={"train": 320, "valid": 80, "test": 100},  # of 400, a fifth validates
        label_seconds=3600,
        reference_seconds=3600,
        search_seconds=1000,
        pool_size=50,
        epochs=100,
        batch_size=64,
        model_size="full",
        sizes={"indset": ("element", {}), "cauctions": ("element", {})},
    ),
}

LEARNING_RATES = {"dualattn": 8e-4, "bgnn": 3e-3}
POSITIONED = ("placement",)  # families whose variables are numbered in the features

# (k0, k1, Delta) as the paper tuned them, on instances with this many binaries.
_BINARIES = {"placement": 1050, "workload": 1000, "indset": 3000, "cauctions": 3000}
_PAS = {
    "placement": {"bgnn": (400, 5, 40), "dualattn": (400, 5, 40)},
    "workload": {"bgnn": (0, 500, 40), "dualattn": (0, 500, 40)},
    "indset": {"bgnn": (300, 300, 40), "dualattn": (400, 400, 40)},
    "cauctions": {"bgnn": (40, 0, 40), "dualattn": (50, 0, 40)},
}
_APOLLO = {
    "placement": ((100, 20, 50), (40, 15, 20), (20, 15, 10), (5, 50, 30)),
    "workload": ((60, 600, 5), (50, 500, 5), (40, 400, 5), (30, 0, 5)),
    "indset": ((50, 50, 50), (40, 15, 40), (20, 15, 30), (1, 5, 10)),
    "cauctions": ((100, 0, 60), (50, 0, 50), (40, 0, 40), (30, 0, 30)),
}
_APOLLO_TIMES = (0.1, 0.1, 0.2, 0.6)  # 100, 100, 200 and 600 of 1,000 seconds
# For any other instance: shares of its binaries, and how Apollo spreads them over its rounds.
_OTHERWISE = TrustRegion(0.2, 0.05, 0.02)
_APOLLO_SHARES = (0.5, 0.25, 0.125, 0.125)


def element_preset(name: str) -> ElementPreset:
    """Return a preset by name."""
    if name not in PRESETS:
        raise InputError(f"there is no preset {name!r}: choose from {', '.join(PRESETS)}")
    return PRESETS[name]


def trust_regions(
    method: str,
    family: str | None = None,
    backbone: str = "dualattn",
    own: TrustRegion | None = None,
) -> list[TrustRegion]:
    """Return the regions of a method, as shares of the binaries.

    For the paper's four families they are the paper's; `own` (shares, too: see `as_shares`)
    replaces them, and serves any other family. No regions is the solver alone.
    """
    if method not in METHODS:
        raise InputError(f"there is no method {method!r}: choose from {', '.join(METHODS)}")
    if method == "solver":
        return []
    if own is None and family in _BINARIES:
        binaries = _BINARIES[family]
        if method == "pas":
            counts = _PAS[family].get(backbone, _PAS[family]["dualattn"])
            return [TrustRegion(*(count / binaries for count in counts))]
        return [
            TrustRegion(k0 / binaries, k1 / binaries, delta / binaries, seconds)
            for (k0, k1, delta), seconds in zip(_APOLLO[family], _APOLLO_TIMES, strict=True)
        ]
    own = own or _OTHERWISE
    if method == "pas":
        return [own]
    return [
        TrustRegion(own.k0 * share, own.k1 * share, own.delta * share, seconds)
        for share, seconds in zip(_APOLLO_SHARES, _APOLLO_TIMES, strict=True)
    ]


def as_shares(region: TrustRegion, binaries: int) -> TrustRegion:
    """Express numbers of variables as shares of the binaries, which Apollo divides further."""
    # Never a full 1, which would mean one variable.
    k0, k1, delta = (min(c / max(binaries, 1), 1 - 1e-9) for c in region.counts(binaries))
    return TrustRegion(k0, k1, delta)


def family_instances(
    problem: str,
    preset: str,
    split: str,
    *,
    count: int | None = None,
    seed: int = 0,
    jobs: int = 1,
    data: Path | str = "data/element",
) -> list[Path]:
    """Return the instance files of a split, generated where they are not there yet."""
    from pipelines.generate import generate

    settings = element_preset(preset)
    if split not in settings.counts:
        known = ", ".join(settings.counts)
        raise InputError(f"predicting variables has no split {split}: choose from {known}")
    source, changes = settings.sizes.get(problem, (preset, {}))
    return generate(
        problem,
        source,
        split,
        count or settings.counts[split],
        seed,
        jobs,
        Path(data).absolute(),  # a worker process may have been started elsewhere
        parameters=changes,
    )
