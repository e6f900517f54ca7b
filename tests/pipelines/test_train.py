"""Training a policy: from shards to a policy.pt that a solver can use, or one clear sentence."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from learn2branch.errors import InputError, WorkError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.imitation import Imitation, SampleBatch, SampleSet, accuracies, baselines
from learn2branch.models import build_model
from learn2branch.policy import export_policy, load_model, load_policy
from learn2branch.runs import Run
from learn2branch.samples import Sample
from learn2branch.shards import Shard, write_shard
from learn2branch.training import TrainingConfig
from pipelines.branching.models import _samples_seen
from pipelines.branching.train import find_collection, show, train

ROOT = Path(__file__).parents[2]
SMALL = {"size": "small", "training": TrainingConfig(epochs=4, batch_size=16, lr=5e-3)}


def sample(rng: np.random.Generator, broken: bool = False) -> Sample:
    """Return a small state whose expert likes large objective coefficients."""
    n, m = 12, 6
    variables = np.zeros((n, 19), np.float32)
    variables[:, 0] = rng.permutation(n) / n
    variables[:, STATE.variable.index("is_binary")] = 1
    variables[:, STATE.variable.index("lp_value")] = rng.uniform(0, 1, n)
    variables[:, STATE.variable.index("fractionality")] = variables[:, 8]
    if broken:
        variables[:, 7] = np.nan
    constraints = rng.standard_normal((m, 5)).astype(np.float32)
    edges = np.stack([np.repeat(np.arange(m), n // 2), np.tile(np.arange(n // 2), m)])
    candidates = rng.permutation(n)[:8]
    scores = np.round(variables[candidates, 0].astype(np.float64) * 6)
    state = BipartiteGraph(
        *map(torch.from_numpy, (constraints, edges)), torch.ones(edges.shape[1]),
        torch.from_numpy(variables),
    )  # fmt: skip
    return Sample(
        state, torch.from_numpy(candidates), torch.from_numpy(scores), int(scores.argmax()),
        torch.from_numpy(rng.uniform(0, 1, 8)),
    )  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "samples" / "toys"
    for split, shards in (("train", 24), ("valid", 5), ("test", 5)):
        for number in range(shards):
            path = folder / split / f"episode-{number:06d}.npz"
            write_shard(path, Shard([sample(rng) for _ in range(8)], {"episode": number}))
    (folder / "collection.json").write_text(json.dumps({"seed": 0}))
    return folder


def test_ones_own_instances_name_their_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.lp", "b.lp", "c.lp"):
        Path(name).touch()
    for name, files in (("mine", ["a.lp", "b.lp"]), ("other", ["c.lp"])):
        folder = Path("samples") / name
        folder.mkdir(parents=True)
        plan = {"instances": files}
        plans = {"train": plan, "valid": plan, "test": plan}
        (folder / "collection.json").write_text(json.dumps({"samples": 8, **plans}))
    assert find_collection(instances=["[ab].lp"]) == Path("samples/mine")
    assert find_collection(instances=[tmp_path / "c.lp"]) == Path("samples/other")
    with pytest.raises(InputError, match="same --instances"):
        find_collection(instances=["a.lp"])
    with pytest.raises(InputError, match="--problem, or"):
        find_collection("setcover", ["a.lp"])


def test_a_policy_is_learned_exported_and_far_above_the_baselines(
    store: Path, tmp_path: Path
) -> None:
    config = TrainingConfig(epochs=25, batch_size=16, lr=5e-3)
    trained = train(samples=store, size="small", training=config, runs=tmp_path / "runs")
    assert trained.folder == tmp_path / "runs" / "toys-dualattn-small"
    assert set(trained.test) == {"policy", "random", "most fractional", "pseudocost"}
    best_baseline = max(trained.test[name]["acc@1"] for name in trained.test if name != "policy")
    assert trained.test["policy"]["acc@1"] > best_baseline + 0.3
    assert trained.waiting_share < 0.5 and len(show(trained)) == 5
    policy = load_policy(trained.policy)
    assert policy.metadata["provenance"]["test"]["random"] == trained.test["random"]
    test_set = SampleSet(store / "test")
    with torch.no_grad():
        scores = load_model(trained.policy).eval()(test_set[0].state)
    torch.testing.assert_close(policy(*test_set[0].state.tensors()), scores, rtol=1e-3, atol=1e-4)
    # A finished run is left alone: the next one gets a number.
    again = train(samples=store, runs=tmp_path / "runs", **SMALL)
    assert again.folder.name == "toys-dualattn-small-2"


def test_a_stopped_run_goes_on_with_more_time_but_not_with_another_rate(
    store: Path, tmp_path: Path
) -> None:
    begun = TrainingConfig(epochs=1, batch_size=16, lr=5e-3)
    stopped = train(samples=store, size="small", training=begun, runs=tmp_path)
    stopped.policy.unlink()  # what a run that was stopped does not have yet
    more = replace(begun, epochs=2, budget_seconds=600.0)
    other = train(samples=store, size="small", training=replace(more, lr=1e-3), runs=tmp_path)
    assert other.folder != stopped.folder
    longer = train(samples=store, size="small", training=more, runs=tmp_path)
    assert (longer.folder, longer.epochs) == (stopped.folder, 2)


def test_two_trainings_that_begin_together_take_a_folder_each(store: Path, tmp_path: Path) -> None:
    # A folder that another one has taken, and not yet written to.
    (tmp_path / "runs" / "toys-bgnn-small").mkdir(parents=True)
    trained = train(samples=store, model="bgnn", runs=tmp_path / "runs", **SMALL)
    assert trained.folder.name == "toys-bgnn-small-2"
    nowhere = {**SMALL, "training": replace(SMALL["training"], device="cuda:99")}
    with pytest.raises(InputError, match="no device"):
        train(samples=store, runs=tmp_path / "runs", **nowhere)
    assert not (tmp_path / "runs" / "toys-dualattn-small").exists()  # it took none in vain
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(InputError, match="no device"):
        train(samples=store, run=mine, **nowhere)
    assert mine.exists()  # a folder that was named is not ours to remove


def test_a_run_does_not_go_on_with_other_samples_or_targets(store: Path, tmp_path: Path) -> None:
    begun = TrainingConfig(epochs=1, batch_size=16, lr=5e-3)
    first = train(samples=store, model="bgnn", size="small", training=begun, runs=tmp_path)
    more = {"model": "bgnn", "size": "small", "training": replace(begun, epochs=2)}
    with pytest.raises(InputError, match=r"data\.soft_targets = 0\.0, not 0\.5"):
        train(samples=store, run=first.folder, soft_targets=0.5, **more)
    with pytest.raises(InputError, match=r"data\.samples = '.*toys', not '.*others'"):
        train(samples=store.rename(store.with_name("others")), run=first.folder, **more)
    store.with_name("others").rename(store)
    rng = np.random.default_rng(1)
    write_shard(store / "train" / "episode-000024.npz", Shard([sample(rng)], {"episode": 24}))
    with pytest.raises(InputError, match=r"examples\.train = 192, not 193"):
        train(samples=store, run=first.folder, **more)
    # Where no folder is named, such a run is not taken for an unfinished one.
    first.policy.unlink()
    assert train(samples=store, runs=tmp_path, **more).folder != first.folder


def test_a_training_starts_from_a_policy_and_ends_no_worse(store: Path, tmp_path: Path) -> None:
    config = TrainingConfig(epochs=5, batch_size=16, lr=5e-3)
    first = train(samples=store, size="small", training=config, run=tmp_path / "first")
    ruinous = replace(config, epochs=1, lr=10.0)
    second = train(samples=store, start=first.policy, training=ruinous, run=tmp_path / "second")
    assert second.best["epoch"] == 0
    assert second.best["loss"] == pytest.approx(first.best["loss"], rel=1e-4)
    weights, before = (load_model(trained.policy).state_dict() for trained in (second, first))
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert [line["epoch"] for line in Run(second.folder).metrics()] == [0, 1]
    more = replace(config, lr=1e-3)
    third = train(samples=store, start=second.policy, training=more, run=tmp_path / "third")
    assert third.best["epoch"] > 0 and third.best["loss"] < first.best["loss"]
    told = load_policy(third.policy).metadata["provenance"]
    assert told["start"]["policy"] == "policy.pt" and _samples_seen(told) == 3 * 192


def test_a_start_of_another_kind_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="setcover-bgnn is a bgnn, not a dualattn"):
        train(samples=store, start="setcover-bgnn", model="dualattn")
    with pytest.raises(InputError, match="of size full, not small"):
        train(samples=store, start="setcover", size="small")
    element = export_policy(build_model("bgnn", task="element"), tmp_path / "element.pt")
    with pytest.raises(InputError, match="for the task element"):
        train(samples=store, start=element)
    with pytest.raises(InputError, match="there is no policy nothing"):
        train(samples=store, start="nothing")


def test_two_processes_train_as_one(store: Path, tmp_path: Path) -> None:
    settings = {**SMALL, "training": TrainingConfig(epochs=2, batch_size=16, lr=5e-3)}
    one = train(samples=store, run=tmp_path / "one", model="bgnn", **settings)
    two = train(samples=store, run=tmp_path / "two", model="bgnn", workers=2, **settings)
    # Adam's steps have the sign of gradients that are zero but for rounding, so weights drift; how
    # exactly the processes agree is tested with the loop itself.
    first = [Run(trained.folder).metrics()[0]["train/loss"] for trained in (one, two)]
    assert first[0] == pytest.approx(first[1], rel=1e-3)
    assert two.test["policy"]["loss"] == pytest.approx(one.test["policy"]["loss"], rel=0.1)


@pytest.mark.slow
def test_torchrun_trains_as_one_process_into_one_folder(store: Path, tmp_path: Path) -> None:
    settings = TrainingConfig(epochs=1, batch_size=16, lr=5e-3)
    one = train(samples=store, run=tmp_path / "one", model="bgnn", size="small", training=settings)
    (tmp_path / "l2b.py").write_text("from pipelines.cli import main\nmain()\n")
    subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "l2b.py", "train", "--samples", str(store), "--model", "bgnn", "--size", "small",
            "--epochs", "1", "--batch-size", "16", "--lr", "5e-3",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=True,
        timeout=300,
    )  # fmt: skip
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["toys-bgnn-small"]
    two = Run(tmp_path / "runs" / "toys-bgnn-small")
    assert load_policy(two.policy_path).metadata["task"] == "state"
    for name in ("train/loss", "valid/loss"):
        assert two.metrics()[0][name] == pytest.approx(Run(one.folder).metrics()[0][name], rel=1e-2)


def test_tensorboard_has_the_metrics_of_every_epoch(store: Path, tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run(tmp_path / "run")
    begun = TrainingConfig(epochs=2, batch_size=16, lr=5e-3)
    train(samples=store, run=run.folder, size="small", training=begun)
    train(samples=store, run=run.folder, **SMALL)  # goes on with it
    board = events.EventAccumulator(str(run.folder / "tensorboard")).Reload()
    metrics = run.metrics()
    assert set(board.Tags()["scalars"]) == set(metrics[0]) - {"epoch"}
    for name in ("train/loss", "valid/loss", "valid/acc@1", "lr"):
        assert [event.step for event in board.Scalars(name)] == [1, 2, 3, 4]
        shown = [event.value for event in board.Scalars(name)]
        assert shown == pytest.approx([line[name] for line in metrics], rel=1e-6)


def test_what_is_missing_is_said_in_one_sentence(store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run l2b collect"):
        train(samples=tmp_path / "nothing")
    with pytest.raises(InputError, match="only 192 training samples"):
        train(samples=store, training=TrainingConfig(batch_size=500))
    with pytest.raises(InputError, match="run l2b collect --problem setcover"):
        find_collection("setcover", root=tmp_path / "samples")
    for path in (store / "test").glob("*.npz"):
        path.unlink()
    with pytest.raises(InputError, match=r"no samples in .*test"):
        train(samples=store, **SMALL)


def test_the_newest_collection_is_found(store: Path) -> None:
    assert find_collection(root=store.parent) == store


def test_a_damaged_shard_is_left_out_and_named(store: Path) -> None:
    path = store / "train" / "episode-000003.npz"
    path.write_bytes(path.read_bytes()[:300])
    samples = SampleSet(store / "train")
    assert len(samples) == 23 * 8 and "episode-000003.npz" in samples.problems[0]


def test_a_loss_that_is_not_a_number_names_the_shard(store: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    write_shard(store / "train" / "episode-000007.npz", Shard([sample(rng, broken=True)] * 8, {}))
    with pytest.raises(WorkError, match=r"became nan.*episode-\d+\.npz"):
        train(samples=store, run=tmp_path / "run", **SMALL)


def test_the_loss_is_the_cross_entropy_towards_any_of_the_best(store: Path) -> None:
    batch = SampleSet(store / "train").batch(range(40))
    logits = torch.randn(len(batch.candidates), generator=torch.Generator().manual_seed(0))
    expected, ties = torch.tensor(0.0), []
    for start, end in pairwise(batch.candidate_ptr.tolist()):
        best = batch.scores[start:end] == batch.scores[start:end].max()
        expected -= logits[start:end].softmax(0)[best].sum().log()
        ties.append(int(best.sum()))
    assert min(ties) == 1 < max(ties)
    torch.testing.assert_close(Imitation().loss(logits, batch), expected)
    soft = [float(Imitation(soft_targets=t).loss(logits, batch)) for t in (1e-4, 1.0)]
    assert soft[0] != pytest.approx(soft[1])


def test_ties_of_the_expert_are_right_and_random_is_what_chance_gives(store: Path) -> None:
    samples = SampleSet(store / "test")
    batch = samples.batch(range(len(samples)))
    worst = accuracies(-batch.scores, batch)
    best = accuracies(batch.scores + 1e-9 * torch.arange(len(batch.scores)), batch)
    assert float(best["acc@1"]) == len(samples) and float(worst["acc@1"]) < len(samples) / 4
    chances = [
        float((s.scores == s.scores.max()).double().mean())
        for s in map(samples.__getitem__, range(len(samples)))
    ]
    assert baselines(samples)["random"]["acc@1"] == pytest.approx(np.mean(chances))
    assert isinstance(batch, SampleBatch) and batch.graph.num_graphs == len(samples)


def test_a_small_cache_gives_the_same_samples(store: Path) -> None:
    large, small = SampleSet(store / "train"), SampleSet(store / "train", cache_bytes=1)
    for index in (0, 100, 3, 191, 100):
        assert torch.equal(large[index].scores, small[index].scores)
    assert len(small._cache) == 1
