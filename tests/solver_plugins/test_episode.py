"""Episodes: what is sampled, what is followed, and that seeds decide everything."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pyscipopt import Model
from torch import Tensor

from learn2branch import BipartiteGraph, InputError
from learn2branch.samples import Sample
from solver_plugins import Episode, apply_protocol, run_episode


@pytest.fixture(scope="module")
def instance(make: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("episode") / "instance.lp"
    make("cauctions", 1).writeProblem(str(path), verbose=False)
    return path


def run(instance: Path, **options: object) -> Episode:
    defaults: dict = {"seed": 1, "expert_probability": 0.3, "node_limit": 25}
    return run_episode(instance, **{**defaults, **options})


def same(first: Sample, second: Sample) -> bool:
    pairs = [
        *zip(first.state.tensors(), second.state.tensors(), strict=True),
        (first.candidates, second.candidates),
        (first.scores, second.scores),
        (first.pseudocosts, second.pseudocosts),
    ]
    return first.choice == second.choice and all(torch.equal(a, b) for a, b in pairs)


def test_samples_say_what_the_expert_did(instance: Path) -> None:
    episode = run(instance)
    assert 0 < len(episode.samples) == episode.num_samples < episode.decisions
    for sample in episode.samples:
        count = len(sample.candidates)
        assert sample.scores.shape == sample.pseudocosts.shape == (count,)
        assert sample.scores.dtype == sample.pseudocosts.dtype == torch.float64
        assert torch.isfinite(sample.scores).all() and torch.isfinite(sample.pseudocosts).all()
        assert sample.choice == sample.scores.argmax()
        assert sample.candidates.unique().numel() == count
        assert sample.candidates.max() < sample.state.num_variables
    assert any(a is b for a, b in zip(*edges_of_neighbours(episode), strict=True))


def edges_of_neighbours(episode: Episode) -> tuple[list[Tensor], list[Tensor]]:
    edges = [sample.state.edge_index for sample in episode.samples]
    return edges[:-1], edges[1:]


def test_the_summary_tells_how_it_went(instance: Path) -> None:
    episode = run(instance)
    assert episode.status in ("optimal", "totalnodelimit") and episode.nodes > 1
    assert episode.scip_version.count(".") == 2
    assert episode.parameters["randomization/permutationseed"] > 0
    assert episode.parameters["separating/maxrounds"] == 0
    assert 0 < episode.observe_seconds < episode.expert_seconds < episode.seconds
    assert episode.objective is not None and episode.dual_bound >= episode.objective - 1e-6


def test_seeds_decide_everything(instance: Path) -> None:
    first, second = run(instance), run(instance)
    assert first.nodes == second.nodes and len(first.samples) == len(second.samples) > 0
    assert all(map(same, first.samples, second.samples))
    other_coins = run(instance, coin_seed=99)
    assert (other_coins.seed, other_coins.coin_seed) == (1, 99)
    assert len(other_coins.samples) != len(first.samples) or not all(
        map(same, first.samples, other_coins.samples)
    )
    other_search = run(instance, seed=2, coin_seed=1)
    assert not same(first.samples[0], other_search.samples[0])


def test_without_the_expert_there_are_no_samples(instance: Path) -> None:
    episode = run(instance, expert_probability=0.0)
    assert episode.decisions > 1 and episode.num_samples == 0 and episode.expert_seconds == 0


def test_a_full_episode_asks_at_every_node(instance: Path) -> None:
    episode = run(instance, expert_probability=1.0)
    assert episode.num_samples == episode.decisions > 1


def test_samples_nodes_and_time_can_be_limited(instance: Path) -> None:
    assert run(instance, max_samples=2).num_samples == 2
    assert run(instance, node_limit=5).nodes <= 5
    started = time.perf_counter()
    assert run(instance, time_limit=0.001).status == "timelimit"
    assert time.perf_counter() - started < 5


def test_a_callback_takes_the_samples_as_they_come(instance: Path) -> None:
    taken: list[Sample] = []
    episode = run(instance, on_sample=taken.append, max_samples=3)
    assert len(taken) == episode.num_samples == 3 and not episode.samples


def test_any_behaviour_can_lead_while_the_expert_is_recorded(instance: Path) -> None:
    calls = []

    def behaviour(state: BipartiteGraph, candidates: Tensor) -> Tensor:
        calls.append(len(candidates))
        return -torch.arange(len(candidates))

    led = run(instance, behaviour=behaviour, follow_expert=False, expert_probability=0.5)
    assert led.num_samples > 0 and len(calls) == led.decisions
    # The expert was only a witness, so the search is the same without it.
    alone = run(instance, behaviour=behaviour, expert_probability=0.0)
    assert alone.nodes == led.nodes and alone.decisions == led.decisions
    followed = run(instance, behaviour=behaviour, expert_probability=1.0)
    assert followed.num_samples == followed.decisions


def test_an_error_in_a_callback_ends_the_episode_and_is_raised(instance: Path) -> None:
    def full(sample: Sample) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(instance, on_sample=full)


def test_wrong_input_is_named(tmp_path: Path, instance: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.lp"):
        run_episode(tmp_path / "nowhere.lp")
    broken = tmp_path / "broken.mps"
    broken.write_text("this is no linear program")
    with pytest.raises(InputError, match=r"broken\.mps"):
        run_episode(broken)
    with pytest.raises(InputError, match="max_samples"):
        run_episode(instance, max_samples=0)
    with pytest.raises(InputError, match="expert_probability"):
        run_episode(instance, expert_probability=1.5)
    with pytest.raises(InputError, match="protocol"):
        run_episode(instance, protocol="gase")


def test_the_protocol_of_the_papers() -> None:
    model = Model()
    chosen = apply_protocol(model, "gasse", seed=5, time_limit=12)
    assert model.getParam("separating/maxrounds") == 0
    assert model.getParam("presolving/maxrestarts") == 0
    assert model.getParam("separating/maxroundsroot") == Model().getParam(
        "separating/maxroundsroot"
    )
    assert model.getParam("limits/time") == 12
    assert model.getParam("randomization/permutevars")
    assert all(model.getParam(name) == value for name, value in chosen.items())
    seeds = [name for name in chosen if name.endswith(("seed", "seedshift"))]
    assert len(seeds) == 3 and len({chosen[name] for name in seeds}) == 3
    again, other = (apply_protocol(Model(), "gasse", seed=seed) for seed in (5, 6))
    assert all(again[name] == chosen[name] != other[name] for name in seeds)
    assert apply_protocol(Model(), "default") == {}
