"""The same episode on Ecole: its translation here, the real thing where Ecole is installed."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from learn2branch import InputError
from learn2branch.features import STATE
from solver_plugins.ecole import graph_of, run_episode

has_ecole = importlib.util.find_spec("ecole") is not None


def ecole_observation() -> SimpleNamespace:
    """Return what Ecole gives, as plain arrays: doubles, unsigned indices, NaN for no incumbent."""
    rng = np.random.default_rng(0)
    variables = rng.normal(size=(4, len(STATE.variable)))
    variables[:, STATE.variable.index("incumbent_value")] = np.nan
    variables[:, STATE.variable.index("average_incumbent_value")] = np.nan
    edges = SimpleNamespace(
        indices=np.array([[0, 0, 1], [3, 1, 2]], dtype=np.uint64), values=np.array([0.6, 0.8, -1.0])
    )
    return SimpleNamespace(
        variable_features=variables,
        row_features=rng.normal(size=(2, len(STATE.constraint))),
        edge_features=edges,
    )


def test_an_observation_of_ecole_becomes_a_state() -> None:
    observation = ecole_observation()
    state, edges = graph_of(observation)
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in state.tensors())
    assert state.edge_index.tolist() == [[0, 0, 1], [3, 1, 2]]
    columns = [STATE.variable.index(n) for n in ("incumbent_value", "average_incumbent_value")]
    assert not state.variable_features[:, columns].any()
    others = [i for i in range(len(STATE.variable)) if i not in columns]
    np.testing.assert_allclose(
        state.variable_features[:, others], observation.variable_features[:, others], rtol=1e-6
    )
    again, _ = graph_of(ecole_observation(), known_edges=edges)
    assert again.edge_index is state.edge_index and again.edge_values is state.edge_values
    changed = ecole_observation()
    changed.edge_features.values[0] = 0.5
    other, _ = graph_of(changed, known_edges=edges)
    assert other.edge_values is not state.edge_values


@pytest.mark.skipif(has_ecole, reason="Ecole is installed")
def test_without_ecole_the_remedy_is_named() -> None:
    with pytest.raises(InputError, match=r"learn2branch\[ecole\]"):
        run_episode("any.lp")


@pytest.mark.skipif(not has_ecole, reason="Ecole is not installed")
def test_an_episode_on_ecole_gives_samples_in_our_format(make: Callable, tmp_path: Path) -> None:
    path = tmp_path / "instance.lp"
    make("cauctions", 1).writeProblem(str(path), verbose=False)
    episodes = [
        run_episode(path, seed=3, expert_probability=0.5, max_samples=4, time_limit=60)
        for _ in range(2)
    ]
    for episode in episodes:
        assert 0 < episode.num_samples == len(episode.samples) <= 4
        for sample in episode.samples:
            assert sample.state.variable_features.shape[1] == len(STATE.variable)
            assert sample.state.constraint_features.shape[1] == len(STATE.constraint)
            assert torch.isfinite(sample.state.variable_features).all()
            assert sample.scores[sample.choice] == sample.scores.max()
            assert len(sample.candidates) == len(sample.scores) == len(sample.pseudocosts)
    first, second = (episode.samples[0] for episode in episodes)
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(first.state.variable_features, second.state.variable_features)
