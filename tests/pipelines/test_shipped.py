"""The shipped policies: each loads, tells where it comes from, and decides as well as it says."""

from math import sqrt
from pathlib import Path

import pytest

from instances import FAMILIES
from learn2branch.features import STATE
from learn2branch.imitation import Imitation, SampleSet
from learn2branch.models import build_model
from learn2branch.policy import load_model, load_policy, shipped_policies
from learn2branch.training import evaluate
from pipelines.branching.collect import collect

SHIPPED = sorted(shipped_policies())
UNSEEN = 1_000_003  # a seed that no shipped policy was made with


@pytest.fixture(scope="module")
def samples_of(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that collects samples of a family from instances nobody has seen."""
    stores: dict[tuple[str, int], SampleSet] = {}

    def samples(family: str, count: int, expert_probability: float) -> SampleSet:
        if (family, count) not in stores:
            folder = tmp_path_factory.mktemp(family)
            store, _ = collect(
                family, splits=["test"], samples=5 * count, max_samples=4, seed=UNSEEN,
                expert_probability=expert_probability, out=folder, data=folder / "data",
            )  # fmt: skip
            stores[family, count] = SampleSet(store / "test")
        return stores[family, count]

    return samples


def test_four_families_have_both_backbones_and_a_small_one() -> None:
    families = ("setcover", "cauctions", "facilities", "indset")
    kinds = ("dualattn", "dualattn-small", "bgnn")
    assert {f"{family}-{kind}" for family in families for kind in kinds} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_tells_where_it_comes_from(name: str) -> None:
    path = shipped_policies()[name]
    metadata = load_policy(name).metadata
    told = metadata["provenance"]
    backbone = metadata["config"]["backbone"]
    sizes = {size: build_model(backbone, size=size).config for size in ("full", "small")}
    suffix = "" if metadata["config"] == sizes["full"] else "-small"
    assert name == f"{told['family']}-{backbone}{suffix}"
    assert metadata["config"] in sizes.values()
    assert told["family"] in FAMILIES and metadata["schema"]["hash"] == STATE.hash
    assert min(told["samples"].values()) >= 100 and told["collection"] and told["training"]
    assert told["test"]["policy"]["acc@1"] > told["test"]["pseudocost"]["acc@1"]
    assert path.stat().st_size <= 4_000_000
    assert str(Path.home()) not in str(told)


def reaches_its_accuracy(name: str, samples: SampleSet, ranks: tuple[int, ...]) -> None:
    """Compare with the recorded accuracies, less three standard errors of so few samples."""
    recorded = load_policy(name).metadata["provenance"]["test"]["policy"]
    found = evaluate(load_model(name), Imitation(), samples)
    for k in ranks:
        p = recorded[f"acc@{k}"]
        assert found[f"acc@{k}"] >= p - 3 * sqrt(p * (1 - p) / len(samples)), (k, found, recorded)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_still_decides_well(name: str, samples_of) -> None:
    reaches_its_accuracy(name, samples_of(name.split("-")[0], 8, 0.2), (10,))


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_reaches_its_recorded_accuracy(name: str, samples_of) -> None:
    # Where the accuracies were recorded, too, the expert was asked at one node in twenty.
    reaches_its_accuracy(name, samples_of(name.split("-")[0], 100, 0.05), (1, 3, 5, 10))
