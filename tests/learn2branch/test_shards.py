"""The sample store's files: nothing is lost, nothing damaged is read, little is written."""

import contextlib
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learn2branch import encoding
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.samples import Sample
from learn2branch.shards import (
    Shard,
    ShardError,
    encode_shard,
    read_header,
    read_shard,
    write_shard,
)

FLAGS = [
    i for i, name in enumerate(STATE.variable) if name.startswith(("is_", "has_", "at_", "basis_"))
]


def random_sample(rng: np.random.Generator, rows: int, columns: int, awkward: bool) -> Sample:
    """Return a state with values that repeat, values that do not, and (awkward) the odd ones."""
    variables = rng.choice(np.float32([0, 1, 0.5, 0.1]), (columns, len(STATE.variable)))
    variables[:, FLAGS] = rng.integers(0, 2, (columns, len(FLAGS)))
    some = rng.random(columns) < 0.5
    variables[some, 7] = rng.standard_normal(int(some.sum()))
    variables[some, 8] = rng.uniform(-3, 3, int(some.sum()))
    constraints = rng.standard_normal((rows, 5)).astype(np.float32)
    if awkward:
        odd = np.float32([-0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38])
        variables[:, 14] = rng.choice(odd, columns)
        constraints[:, 0] = rng.choice(odd, rows)
    edges = int(rng.integers(0, rows * columns + 1))
    cells = np.sort(rng.choice(rows * columns, edges, replace=False))
    index = np.stack([cells // columns, cells % columns]).astype(np.int64)
    values = rng.choice(np.float32([1, -1, 0.3]), edges)
    values[rng.random(edges) < 0.3] = rng.standard_normal(1).astype(np.float32)
    k = int(rng.integers(1, columns + 1))
    return Sample(
        BipartiteGraph(*map(torch.from_numpy, (constraints, index, values, variables))),
        torch.from_numpy(rng.permutation(columns)[:k]),
        torch.from_numpy(rng.standard_normal(k)),
        int(rng.integers(0, k)),
        torch.from_numpy(rng.standard_normal(k)),
    )


def bits(sample: Sample) -> list[Any]:
    tensors = [*sample.state.tensors(), sample.candidates, sample.scores]
    if sample.pseudocosts is not None:
        tensors.append(sample.pseudocosts)
    described = [(t.dtype, tuple(t.shape), t.contiguous().numpy().tobytes()) for t in tensors]
    pointers = [sample.state.constraint_ptr.tolist(), sample.state.variable_ptr.tolist()]
    return [described, pointers, sample.choice]


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 4),
    rows=st.integers(0, 12),
    columns=st.integers(1, 300),
    awkward=st.booleans(),
    same_matrix=st.booleans(),
    plain=st.booleans(),
)
def test_every_bit_of_a_sample_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, count: int, rows: int, columns: int,
    awkward: bool, same_matrix: bool, plain: bool,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    samples = [random_sample(rng, rows, columns, awkward) for _ in range(count)]
    if same_matrix and samples:
        first = samples[0].state
        samples = [
            Sample(
                BipartiteGraph(
                    torch.cat([first.constraint_features[:, :2],
                               s.state.constraint_features[:, 2:]], dim=1),
                    first.edge_index, first.edge_values, s.state.variable_features,
                ), s.candidates, s.scores, s.choice, s.pseudocosts,
            )
            for s in samples
        ]  # fmt: skip
    path = tmp_path_factory.mktemp("shards") / "episode.npz"
    write_shard(path, Shard(samples, {"instance": "x.lp", "seed": 3}))
    with pytest.MonkeyPatch.context() as patch:
        if plain:  # as where no compiler was present
            patch.setattr(encoding, "_DECODING", None)
        read = read_shard(path)
    assert read.provenance == {"instance": "x.lp", "seed": 3}
    assert [bits(sample) for sample in read.samples] == [bits(sample) for sample in samples]
    assert read_header(path)["samples"] == count
    assert encode_shard(Shard(read.samples, read.provenance)) == path.read_bytes()


def test_sizes_may_differ_within_an_episode_and_pseudocosts_be_absent(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    samples = [random_sample(rng, rows, 9 + rows, False) for rows in (3, 7, 3)]
    samples = [Sample(s.state, s.candidates, s.scores, s.choice) for s in samples]
    write_shard(tmp_path / "a.npz", Shard(samples))
    read = read_shard(tmp_path / "a.npz").samples
    assert [bits(sample) for sample in read] == [bits(sample) for sample in samples]
    assert read[0].pseudocosts is None


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [("value_codes", 254), ("value_codes", 255), ("row_sizes", 99), ("matrix_steps", 99)],
)
def test_arrays_that_do_not_fit_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, plain: bool, name: str, value: int
) -> None:
    samples = [random_sample(np.random.default_rng(4), 5, 20, False)]
    members, layout = encoding.encode(samples)
    members["compressed"] = members["compressed"].copy()
    if plain:
        monkeypatch.setattr(encoding, "_DECODING", None)
    assert bits(encoding.decode(members, layout)[0]) == bits(samples[0])
    arrays: dict[str, Any] = {}
    encoding._split(members["compressed"], layout["arrays"]["compressed"], arrays)
    arrays[name][..., -1] = value
    with pytest.raises((ValueError, IndexError)):
        encoding.decode(members, layout)


REFUSALS = (ValueError, IndexError, KeyError, TypeError, RuntimeError)  # that `read_shard` names


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_altered_byte_makes_the_compiled_decoding_leave_its_arrays(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    members, layout = encoding.encode([random_sample(rng, 4, 12, False) for _ in range(2)])
    name = data.draw(st.sampled_from(["compressed", "stored"]))
    members[name] = altered = members[name].copy()
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(altered) - 1))
        altered[position] = data.draw(st.integers(0, 255))
    with contextlib.suppress(*REFUSALS):  # a byte of a value only gives another value
        samples = encoding.decode(members, layout)
        assert [len(s.scores) for s in samples] == [len(s.candidates) for s in samples]


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    "described",
    [["<u2", 4], ["|u1", -1], ["|u1", 10**30], ["|u1", 5.5], ["|u1"], ["<f8", 1], "|u1", None, []],
)
def test_a_layout_that_does_not_fit_its_member_is_refused(
    monkeypatch: pytest.MonkeyPatch, plain: bool, described: Any
) -> None:
    members, layout = encoding.encode([random_sample(np.random.default_rng(4), 5, 20, False)])
    layout["arrays"]["compressed"]["row_sizes"] = described
    if plain:
        monkeypatch.setattr(encoding, "_DECODING", None)
    with pytest.raises(REFUSALS):
        encoding.decode(members, layout)


@pytest.mark.skipif(encoding._DECODING is None, reason="no compiler was present")
def test_the_fractionality_follows_from_any_lp_value_as_numpy_computes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate(
        [
            rng.uniform(-3, 3, 300), rng.standard_normal(300) * 1e6, np.arange(-9, 9) - 1e-6,
            [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1e-6, 999999.5, 1e6, 2.0**31],
        ]
    ).astype(np.float32)  # fmt: skip
    sample = random_sample(rng, 3, len(values), False)
    variables = sample.state.variable_features.numpy()
    variables[:, STATE.variable.index("lp_value")] = values
    with np.errstate(invalid="ignore"):
        variables[:, STATE.variable.index("fractionality")] = encoding._fractionality(variables)
        members, layout = encoding.encode([sample])
        assert layout["fractionality"] == "of the LP value"
        assert bits(encoding.decode(members, layout)[0]) == bits(sample)
        monkeypatch.setattr(encoding, "_DECODING", None)
        assert bits(encoding.decode(members, layout)[0]) == bits(sample)


def test_nonzeros_come_back_in_the_canonical_order(tmp_path: Path) -> None:
    sample = random_sample(np.random.default_rng(0), 5, 20, False)
    state = sample.state
    order = torch.randperm(state.num_edges, generator=torch.Generator().manual_seed(0))
    shuffled = BipartiteGraph(
        state.constraint_features, state.edge_index[:, order], state.edge_values[order],
        state.variable_features,
    )  # fmt: skip
    samples = [Sample(shuffled, sample.candidates, sample.scores, sample.choice)]
    write_shard(tmp_path / "a.npz", Shard(samples))
    read = read_shard(tmp_path / "a.npz").samples[0].state
    assert torch.equal(read.edge_index, state.edge_index)
    assert torch.equal(read.edge_values, state.edge_values)


def test_a_row_is_stored_once_however_the_matrix_changes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    full = random_sample(rng, 200, 400, False)
    kept = torch.arange(200) % 10 != 3  # some cuts leave the LP
    number = torch.cumsum(kept, 0) - 1
    edges = kept[full.state.edge_index[0]]
    index = full.state.edge_index[:, edges]
    fewer = BipartiteGraph(
        full.state.constraint_features[kept],
        torch.stack([number[index[0]], index[1]]),
        full.state.edge_values[edges],
        full.state.variable_features,
    )
    one = len(encode_shard(Shard([full])))
    both = Shard([full, Sample(fewer, full.candidates, full.scores, full.choice, full.pseudocosts)])
    assert len(encode_shard(both)) < one + 0.2 * one
    write_shard(tmp_path / "a.npz", both)
    assert [bits(s) for s in read_shard(tmp_path / "a.npz").samples] == [
        bits(s) for s in both.samples
    ]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "episode-000007.npz"
    write_shard(path, Shard([random_sample(rng, 10, 30, False) for _ in range(3)], {"seed": 1}))
    return path


def test_a_truncated_shard_is_named_and_refused(shard: Path) -> None:
    whole = shard.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:length])
        with pytest.raises(ShardError, match=r"episode-000007\.npz is truncated"):
            read_shard(shard)


def test_a_flipped_bit_anywhere_is_noticed_or_harmless(shard: Path) -> None:
    whole, before = shard.read_bytes(), [bits(sample) for sample in read_shard(shard).samples]
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(whole), 150):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(rng.integers(0, 8))
        shard.write_bytes(damaged)
        problem, after = "", before
        try:
            after = [bits(sample) for sample in read_shard(shard).samples]
        except ShardError as error:
            problem = str(error)
        # Harmless: a byte of the archive that means nothing, such as a date.
        assert "episode-000007.npz" in problem or after == before


def rewrite(path: Path, change: Any) -> None:
    """Write the archive anew, its own checks intact, after changing header or members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_an_altered_shard_is_refused_though_the_archive_is_sound(shard: Path) -> None:
    def alter_scores(members: dict[str, bytes]) -> None:
        data = bytearray(members["stored.npy"])
        data[-3] ^= 1
        members["stored.npy"] = bytes(data)

    rewrite(shard, alter_scores)
    with pytest.raises(ShardError, match="was altered"):
        read_shard(shard)


def test_an_altered_header_is_refused(shard: Path) -> None:
    def alter_seed(members: dict[str, bytes]) -> None:
        members["header.npy"] = members["header.npy"].replace(b'"seed": 1', b'"seed": 2')

    rewrite(shard, alter_seed)
    with pytest.raises(ShardError, match="was altered"):
        read_header(shard)


@pytest.mark.parametrize(("field", "words"), [("version", "version 99"), ("schema", "schema")])
def test_another_version_or_schema_is_refused_with_a_remedy(
    shard: Path, monkeypatch: pytest.MonkeyPatch, field: str, words: str
) -> None:
    def alter(members: dict[str, bytes]) -> None:
        content = members["header.npy"]
        start = 10 + int.from_bytes(content[8:10], "little")
        header = json.loads(content[start:])
        header[field] = 99
        text = json.dumps(header).encode().ljust(len(content) - start)
        members["header.npy"] = content[:start] + text

    rewrite(shard, alter)
    with pytest.raises(ShardError, match=f"{words}.*collect again"):
        read_shard(shard)


def test_numpy_alone_can_open_a_shard_and_finds_no_pickle(shard: Path) -> None:
    with np.load(shard, allow_pickle=False) as file:
        assert sorted(file.files) == ["compressed", "header", "stored"]
        assert json.loads(file["header"].tobytes())["samples"] == 3
