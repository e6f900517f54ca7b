"""Collecting: the same store whatever happens on the way, and no instance can spoil it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from learn2branch.errors import InputError, WorkError
from learn2branch.shards import read_header, read_shard
from pipelines.branching.collect import collect

FAST = {"expert_probability": 0.5, "max_samples": 3, "node_limit": 60, "time_limit": 60}


@pytest.fixture(scope="module")
def covers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of small instances that branch within a second."""
    from pipelines.generate import generate

    out = tmp_path_factory.mktemp("data")
    generate("setcover", "tiny", "train", count=3, out=out)
    return out / "setcover"


def contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


def test_the_store_depends_on_the_seed_alone(covers: Path, tmp_path: Path) -> None:
    one, counts = collect(
        instances=[covers], samples=12, jobs=1, out=tmp_path / "one", seed=4, **FAST
    )
    two, _ = collect(instances=[covers], samples=12, jobs=2, out=tmp_path / "two", seed=4, **FAST)
    assert contents(one) == contents(two)
    assert [counts[split].samples for split in ("train", "valid", "test")] == [12, 2, 2]
    # Half of it first, with an episode cut, then a shard damaged and a half-written one left over.
    part = tmp_path / "part"
    store, _ = collect(instances=[covers], samples=10, jobs=1, out=part, seed=4, **FAST)
    shards = sorted((store / "train").glob("*.npz"))
    shards[1].write_bytes(shards[1].read_bytes()[:500])
    (store / "train" / ".episode-000003.npz.77.part").write_bytes(b"half")
    collect(instances=[covers], samples=12, jobs=1, out=part, seed=4, **FAST)
    assert contents(store) == contents(one)
    header = read_header(shards[0])
    assert header["provenance"]["scip"].startswith("1") and header["provenance"]["seed"] > 0
    assert sum(len(read_shard(path).samples) for path in (one / "train").glob("*.npz")) == 12


def test_two_collections_that_follow_each_other_are_one(covers: Path, tmp_path: Path) -> None:
    settings = {"instances": [covers], "splits": ["train"], "jobs": 1, "seed": 4, **FAST}
    whole, _ = collect(samples=15, out=tmp_path / "whole", **settings)
    front, _ = collect(samples=6, out=tmp_path / "front", **settings)
    begun = len(list((front / "train").glob("*.npz")))
    rest, counts = collect(samples=6, first_episode=begun, out=tmp_path / "rest", **settings)
    found = {path.name for path in (rest / "train").glob("*.npz")}
    assert counts["train"].samples == 6 and f"episode-{begun:06d}.npz" == min(found)
    assert len(found) > 1
    for name in found - {max(found)}:  # the last is cut to its collection's own count
        assert (rest / "train" / name).read_bytes() == (whole / "train" / name).read_bytes()
    # A store of a version that did not know first episodes goes on.
    path = front / "collection.json"
    old = json.loads(path.read_text())
    del old["train"]["first_episode"]
    path.write_text(json.dumps(old))
    collect(samples=6, out=tmp_path / "front", **settings)
    with pytest.raises(InputError, match="first_episode 0, not 2"):
        collect(samples=6, first_episode=2, out=tmp_path / "front", **settings)


def test_ray_collects_the_same_store(covers: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    settings = {"instances": [covers], "samples": 6, "jobs": 2, "seed": 4, **FAST}
    here, _ = collect(out=tmp_path / "here", **settings)
    there, _ = collect(out=tmp_path / "there", parallel_backend="ray", **settings)
    assert contents(here) == contents(there)


def test_other_settings_in_the_same_store_are_refused(covers: Path, tmp_path: Path) -> None:
    one = sorted(covers.rglob("*.lp"))[:1]
    collect(instances=one, samples=2, out=tmp_path, **FAST)
    with pytest.raises(InputError, match="seed 0, not 1"):
        collect(instances=one, samples=2, out=tmp_path, seed=1, **FAST)
    with pytest.raises(InputError, match="is for 2 samples"):
        collect(instances=one, samples=1, out=tmp_path, **FAST)
    with pytest.raises(InputError, match="--problem"):
        collect(samples=1, out=tmp_path)


def test_parameters_of_a_users_own_reach_scip_and_are_kept(covers: Path, tmp_path: Path) -> None:
    settings = {"instances": [covers], "samples": 2, "splits": ["train"], "out": tmp_path, **FAST}
    parameters = {"limits/totalnodes": "7", "separating/maxrounds": "0"}
    store, _ = collect(protocol="default", parameters=parameters, **settings)
    plan = json.loads((store / "collection.json").read_text())["train"]
    assert plan["protocol"] == "default"
    assert plan["parameters"] == [["limits/totalnodes", 7], ["separating/maxrounds", 0]]
    for path in (store / "train").glob("*.npz"):
        assert read_header(path)["provenance"]["nodes"] <= 7
    with pytest.raises(InputError, match=r"protocol default, not gasse"):
        collect(parameters=parameters, **settings)
    with pytest.raises(InputError, match=r"was collected with parameters"):
        collect(protocol="default", **settings)


@pytest.mark.parametrize("content", ["[]", "{}", '{"samples": 3, "train": {}}', "{"])
def test_what_is_no_collection_is_named(content: str, covers: Path, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "collection.json").write_text(content)
    with pytest.raises(InputError, match=r"collection\.json is no collection's"):
        collect(instances=[covers], samples=5, out=tmp_path)


def test_an_instance_that_cannot_be_read_costs_its_episodes_only(
    covers: Path, tmp_path: Path
) -> None:
    good = sorted(covers.rglob("*.lp"))[0]
    bad = tmp_path / "bad.mps"
    bad.write_text("ROWS\nthis is no instance")
    _, summary = collect(instances=[bad, good], samples=4, jobs=1, out=tmp_path / "samples", **FAST)
    assert summary["train"].samples == 4
    assert any("bad.mps" in name for name in summary["train"].failed)
    with pytest.raises(WorkError, match="gave no sample"):
        collect(instances=[bad], samples=4, out=tmp_path / "none", **FAST)


def test_an_instance_without_branching_is_said_to_be_too_easy(tmp_path: Path) -> None:
    (tmp_path / "easy.lp").write_text(
        "Minimize\n x\nSubject To\n c: x >= 1\nBounds\n x <= 4\nEnd\n"
    )
    with pytest.raises(WorkError, match="solved without branching"):
        collect(instances=[tmp_path / "easy.lp"], samples=4, out=tmp_path / "samples", **FAST)


def start(folder: Path, instances: Path) -> subprocess.Popen[bytes]:
    arguments = ["--instances", str(instances), "--samples", "40", "--seed", "4", "--jobs", "2"]
    options = ["--expert-prob", "0.5", "--preset", "tiny", "--out", str(folder)]
    code = "from pipelines.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "collect", *arguments, *options],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def wait_for_shards(store: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while len(list(store.rglob("episode-*.npz"))) < count:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)


@pytest.mark.slow
def test_killed_and_interrupted_collections_end_as_if_nothing_had_been(
    covers: Path, tmp_path: Path
) -> None:
    straight, _ = collect(
        instances=[covers], samples=40, jobs=2, seed=4, preset="tiny",
        expert_probability=0.5, out=tmp_path / "straight",
    )  # fmt: skip
    store = tmp_path / "hurt" / "own"
    process = start(tmp_path / "hurt", covers)
    wait_for_shards(store, 2, process)
    process.kill()  # kill -9 of the whole command
    process.wait()
    done = len(list(store.rglob("episode-*.npz")))
    process = start(tmp_path / "hurt", covers)
    wait_for_shards(store, done + 1, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"samples are in" in said and b"the same command goes on" in said
    assert not list(store.rglob("*.part"))
    process = start(tmp_path / "hurt", covers)
    wait_for_shards(store, len(list(store.rglob("episode-*.npz"))) + 1, process)
    kill_a_grandchild(process.pid)  # kill -9 of a process that solves
    process.communicate(timeout=300)
    assert process.returncode == 0
    assert contents(store) == contents(straight)


def kill_a_grandchild(pid: int) -> None:
    """Kill a process that was started by a worker of this process."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(status.parent.name)] = int(fields[1])
    workers = {child for child, parent in parents.items() if parent == pid}
    grandchildren = [child for child, parent in parents.items() if parent in workers]
    for child in grandchildren[:1]:
        os.kill(child, signal.SIGKILL)


def test_the_collection_says_what_it_is(covers: Path, tmp_path: Path) -> None:
    one = sorted(covers.rglob("*.lp"))[:1]
    store, _ = collect(instances=one, samples=2, out=tmp_path, name="mine", **FAST)
    told = json.loads((store / "collection.json").read_text())
    assert store == tmp_path / "mine"
    assert told["samples"] == 2 and told["train"]["expert_probability"] == 0.5


def test_splits_can_be_collected_apart_and_with_other_settings(
    covers: Path, tmp_path: Path
) -> None:
    mine = {"instances": sorted(covers.rglob("*.lp"))[:1], "samples": 5, "out": tmp_path}
    rarely = {**FAST, "expert_probability": 0.3}
    store, found = collect(splits=("test",), **mine, **rarely)
    assert list(found) == ["test"] and found["test"].samples == 1
    collect(splits=("train", "valid"), **mine, **FAST)
    told = json.loads((store / "collection.json").read_text())
    assert told["test"]["expert_probability"] == 0.3
    assert told["train"]["expert_probability"] == told["valid"]["expert_probability"] == 0.5
    with pytest.raises(InputError, match=r"expert_probability 0\.3, not 0\.5 \(test\)"):
        collect(**mine, **FAST)
