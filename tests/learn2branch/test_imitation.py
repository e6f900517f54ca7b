"""A folder of shards as examples: what is damaged is left out, refused, or named when read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from random_graphs import random_graph

from learn2branch import build_model, shards
from learn2branch.graph import BipartiteGraph
from learn2branch.imitation import Imitation, SampleSet
from learn2branch.samples import Sample
from learn2branch.shards import Shard, ShardError, write_shard
from learn2branch.training import TrainingConfig, TrainingResult, train


def sample(seed: int) -> Sample:
    graph = random_graph(6, 12, 30, seed=seed)
    variables = torch.zeros_like(graph.variable_features)
    variables[:, 0] = graph.variable_features[:, 0]
    state = BipartiteGraph(
        graph.constraint_features, graph.edge_index, graph.edge_values, variables
    )
    scores = torch.from_numpy(np.random.default_rng(seed).uniform(size=5))
    return Sample(state, torch.arange(5), scores, int(scores.argmax()))


def store(folder: Path) -> Path:
    for number in range(4):
        samples = [sample(4 * number + k) for k in range(4)]
        write_shard(folder / f"episode-{number:06d}.npz", Shard(samples))
    return folder


def test_a_truncated_shard_is_left_out_whatever_the_folder_is_called(tmp_path: Path) -> None:
    folder = store(tmp_path / "schema-version-study")
    path = folder / "episode-000001.npz"
    path.write_bytes(path.read_bytes()[:-9])
    samples = SampleSet(folder)
    assert len(samples) == 12
    assert len(samples.problems) == 1 and str(path) in samples.problems[0]


def test_a_store_of_another_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = store(tmp_path)
    monkeypatch.setattr(shards, "VERSION", 99)
    with pytest.raises(ShardError, match="version 1, this learn2branch reads 99"):
        SampleSet(folder)


def test_samples_that_were_altered_stop_a_training_which_goes_on_once_they_are_mended(
    tmp_path: Path,
) -> None:
    folder = store(tmp_path / "samples")

    def learn(epochs: int) -> TrainingResult:
        torch.manual_seed(0)
        model, samples = build_model("bgnn", size="small"), SampleSet(folder)
        assert samples.problems == []  # the headers are right
        config = TrainingConfig(epochs=epochs, batch_size=4)
        return train(model, Imitation(), samples, samples, config, tmp_path / "run")

    learn(epochs=1)
    path = folder / "episode-000002.npz"
    whole = path.read_bytes()
    with np.load(path) as arrays:
        place = whole.index(arrays["stored"].tobytes())
    altered = bytearray(whole)
    altered[place + 20] ^= 4
    path.write_bytes(altered)
    with pytest.raises(ShardError, match=r"episode-000002\.npz was altered.*collect again"):
        learn(epochs=3)
    path.write_bytes(whole)
    assert learn(epochs=3).epochs == 3
