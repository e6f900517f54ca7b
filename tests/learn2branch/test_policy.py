"""An exported policy scores as its model does, and a wrong file is answered with one sentence."""

import copy
import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch
from random_graphs import random_graph, straightforward

from learn2branch import (
    BipartiteGraph,
    InputError,
    build_model,
    export_policy,
    load_model,
    load_policy,
)
from learn2branch import policy as policies
from learn2branch.kernels import KERNELS
from learn2branch.policy import find_policy, shipped_policies

needs_kernels = pytest.mark.skipif(KERNELS is None, reason="the kernels were not compiled here")
MODELS = {
    "dualattn": {},
    "dualattn, small": {"size": "small"},
    "dualattn, coefficients by an MLP": {"edge_encoding": "mlp", "layers": 2},
    "dualattn, no self-attention": {"self_attention": False, "layers": 2},
    "dualattn, no cross-attention": {"cross_attention": False, "layers": 2},
    "dualattn, odd width": {"width": 10, "inner": 12, "heads": 3, "layers": 2},
    "bgnn": {},
}
DEGENERATE = [(60, 90, 700), (1, 4, 3), (3, 5, 1), (2, 2, 0)]


def trained(name, task="state"):
    torch.manual_seed(1)
    model = build_model(name.split(",")[0], task, **MODELS[name])
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.fit_normaliser([random_graph(20, 30, 200, model.schema.name)])
    return model


@pytest.fixture(scope="module")
def policy_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("policy") / "policy.pt"
    return export_policy(
        trained("dualattn, small"), path, provenance={"family": "setcover", "samples": 12}
    )


@pytest.mark.parametrize("task", ["state", "element", "instance"])
@pytest.mark.parametrize("name", MODELS)
def test_a_policy_scores_as_the_model_it_was_exported_from(
    name, task, kernels_or_not, tmp_path
) -> None:
    model = trained(name, task)
    policy = load_policy(export_policy(model, tmp_path / "policy.pt"))
    definition = straightforward(model)
    for sizes in DEGENERATE:
        graph = random_graph(*sizes, model.schema.name)
        scores = policy(*graph.tensors())
        torch.testing.assert_close(scores, definition(graph), atol=1e-4, rtol=1e-4)
        if task != "instance":
            candidates = torch.tensor([1, 0])
            torch.testing.assert_close(
                policy(*graph.tensors(), candidates=candidates), scores[candidates]
            )


@pytest.mark.parametrize("backbone", ["dualattn", "bgnn"])
def test_folding_changes_no_score_and_no_choice_on_real_states(backbone, tmp_path) -> None:
    from states import real_states

    states = real_states(200, 400, 3)
    torch.manual_seed(2)
    model = build_model(backbone)
    model.fit_normaliser(graph for graph, _ in states)
    policy, unfolded = load_policy(export_policy(model, tmp_path / "p.pt")), straightforward(model)
    for graph, candidates in states:
        scores, expected = policy(*graph.tensors(), candidates=candidates), unfolded(graph)
        torch.testing.assert_close(scores, expected[candidates], atol=1e-4, rtol=0)
        assert scores.argmax() == expected[candidates].argmax()


def test_the_file_alone_runs_under_torch(policy_file) -> None:
    graph = random_graph(20, 30, 200)
    scores = load_policy(policy_file)(*graph.tensors())
    arrays = io.BytesIO()
    np.savez(arrays, *(tensor.numpy() for tensor in graph.tensors()))
    program = (
        "import io, sys, numpy, torch\n"
        "arrays = numpy.load(io.BytesIO(sys.stdin.buffer.read()))\n"
        "policy = torch.jit.load(sys.argv[1])\n"
        "scores = policy(*(torch.from_numpy(arrays[name]) for name in arrays))\n"
        "assert 'learn2branch' not in sys.modules\n"
        "print(scores.tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(policy_file)],
        input=arrays.getvalue(),
        capture_output=True,
        check=True,
    )
    torch.testing.assert_close(torch.tensor(json.loads(done.stdout)), scores)


def test_metadata_say_what_the_policy_is_and_where_it_comes_from(policy_file) -> None:
    metadata = load_policy(policy_file).metadata
    assert metadata["format"] == policies.FORMAT
    assert metadata["task"] == "state"
    assert metadata["config"]["backbone"] == "dualattn" and metadata["config"]["width"] == 32
    assert metadata["schema"]["hash"] == policies.SCHEMAS["state"].hash
    assert metadata["schema"]["variable"][0] == "objective"
    assert len(metadata["normaliser"]["variable"]["shift"]) == 19
    assert metadata["provenance"] == {"family": "setcover", "samples": 12}
    assert metadata["versions"]["torch"] == torch.__version__


def test_the_trainable_model_comes_back_from_a_policy(policy_file) -> None:
    graph = random_graph(20, 30, 200)
    model = load_model(policy_file)
    torch.testing.assert_close(model(graph), trained("dualattn, small")(graph))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_another_matrix_is_noticed_though_the_last_one_is_kept(policy_file) -> None:
    policy, model = load_policy(policy_file), load_model(policy_file)
    first, second = random_graph(20, 30, 200), random_graph(20, 30, 200, seed=1)
    for graph in (first, second, first, first):
        torch.testing.assert_close(policy(*graph.tensors()), model(graph), atol=1e-4, rtol=1e-4)
    # Another state of the same matrix, then the same tensors changed in place.
    changed = BipartiteGraph(
        -first.constraint_features, first.edge_index, first.edge_values, -first.variable_features
    )
    torch.testing.assert_close(policy(*changed.tensors()), model(changed), atol=1e-4, rtol=1e-4)
    first.edge_values.mul_(3)
    torch.testing.assert_close(policy(*first.tensors()), model(first), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["dualattn, small", "bgnn"])
def test_features_may_lie_in_memory_in_any_order(name, kernels_or_not, tmp_path) -> None:
    policy = load_policy(export_policy(trained(name), tmp_path / "policy.pt"))
    constraints, index, values, variables = random_graph(20, 30, 200).tensors()
    scores = policy(constraints, index, values, variables)
    by_column = [features.T.contiguous().T for features in (constraints, variables)]
    assert not by_column[1].is_contiguous()
    torch.testing.assert_close(policy(by_column[0], index, values, by_column[1]), scores)


@needs_kernels
@pytest.mark.parametrize("name", ["dualattn, small", "bgnn"])
def test_two_threads_may_share_a_policy(name, tmp_path, monkeypatch) -> None:
    policy = load_policy(export_policy(trained(name), tmp_path / "policy.pt"))
    first, second = random_graph(20, 30, 200), random_graph(20, 30, 200, seed=1)
    expected = [policy(*graph.tensors()) for graph in (second, first)]
    scores = []
    other = threading.Thread(target=lambda: scores.append(policy(*first.tensors())))
    use_edges = policy._native._use_edges

    def let_the_other_in():
        use_edges()
        if not scores and not other.is_alive():
            other.start()
            other.join(timeout=0.3)  # it has to wait until this call is done

    monkeypatch.setattr(policy._native, "_use_edges", let_the_other_in)
    mine = policy(*second.tensors())
    other.join()
    torch.testing.assert_close([mine, *scores], expected)


@pytest.mark.parametrize("name", ["dualattn, small", "bgnn"])
def test_a_copy_of_a_policy_scores_alike_without_the_original(name, tmp_path) -> None:
    policy = load_policy(export_policy(trained(name), tmp_path / "policy.pt"))
    graph = random_graph(20, 30, 200)
    scores, copied = policy(*graph.tensors()), copy.deepcopy(policy)
    del policy
    torch.testing.assert_close(copied(*graph.tensors()), scores)


@pytest.mark.parametrize("backbone", ["dualattn", "bgnn"])
def test_a_policy_for_instances_takes_no_candidates(backbone, kernels_or_not, tmp_path) -> None:
    path = export_policy(trained(backbone, "instance"), tmp_path / "policy.pt")
    graph, candidates = random_graph(20, 30, 200, "instance"), torch.tensor([1, 2])
    for policy in (load_policy(path), torch.jit.load(str(path))):
        assert policy(*graph.tensors()).shape == (1,)
        with pytest.raises((ValueError, torch.jit.Error), match="takes no candidates"):
            policy(*graph.tensors(), candidates)


@needs_kernels
def test_edges_of_another_type_or_number_are_refused(policy_file) -> None:
    policy = load_policy(policy_file)
    constraints, index, values, variables = random_graph(20, 30, 200).tensors()
    for wrong in ((index.int(), values), (index, values[:-1]), (index, values[:, None])):
        with pytest.raises(ValueError, match=r"int64 edge_index of shape \(2, e\)"):
            policy(constraints, *wrong, variables)


def test_features_of_another_shape_or_a_foreign_candidate_are_refused(policy_file) -> None:
    policy = load_policy(policy_file)
    constraints, index, values, variables = random_graph(20, 30, 200).tensors()
    with pytest.raises((ValueError, RuntimeError)):
        policy(constraints, index, values, variables[:, :-1])
    with pytest.raises((IndexError, RuntimeError)):
        policy(constraints, index, values, variables, candidates=torch.tensor([30]))
    with pytest.raises((IndexError, RuntimeError)):
        policy(constraints[:-1], index, values, variables)


class _Bomb:
    def __reduce__(self):
        return (print, ("unpickled",))


def _with_metadata(policy_file, path, change):
    """Copy a policy with other metadata."""
    with zipfile.ZipFile(policy_file) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            content = old.read(member)
            if member.endswith("metadata.json"):
                metadata = json.loads(content)
                change(metadata)
                content = json.dumps(metadata).encode()
            new.writestr(member, content)


def _with_directory(policy_file, path, change):
    """Copy a policy with changes in the directory at the end of the archive."""
    content = policy_file.read_bytes()
    start = int.from_bytes(content[-6:-2], "little")  # as the end of the archive says
    directory = bytearray(content[start:])
    change(directory)
    path.write_bytes(content[:start] + directory)


def _flip(position, bit):
    def change(directory):
        directory[position] ^= 1 << bit

    return change


def _name_a_member_twice(directory):
    first, *_, last = re.finditer(rb"/data/\d\d", directory)
    directory[first.start() : first.end()] = last[0]


WRONG = {
    "a member that seems encrypted": (
        lambda path, good: _with_directory(good, path, _flip(8, 0)),
        "is not a policy file",
    ),
    "a member whose name is no text": (
        lambda path, good: _with_directory(good, path, _flip(50, 7)),
        "is not a policy file",
    ),
    "a member that is named as another": (
        lambda path, good: _with_directory(good, path, _name_a_member_twice),
        "is not a policy file",
    ),
    "metadata without a name": (
        lambda path, good: _with_metadata(good, path, lambda m: m["config"].update(backbone=[])),
        "no metadata of a policy",
    ),
    "text": (lambda path, _: path.write_text("not a policy"), "is not a policy"),
    "nothing": (lambda path, _: path.write_bytes(b""), "is not a policy"),
    "a pickle": (lambda path, _: path.write_bytes(pickle.dumps(_Bomb())), "is not a policy"),
    "a checkpoint": (lambda path, _: torch.save({"bomb": _Bomb()}, path), "is not a policy"),
    "half a policy": (
        lambda path, good: path.write_bytes(good.read_bytes()[: good.stat().st_size // 2]),
        "cut short",
    ),
    "a damaged policy": (
        lambda path, good: path.write_bytes(
            good.read_bytes()[:20000] + b"\0" * 99 + good.read_bytes()[20099:]
        ),
        "is not a policy|is damaged",
    ),
    "TorchScript without metadata": (
        lambda path, _: torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(path)),
        "is not a policy",
    ),
    "a later format": (
        lambda path, good: _with_metadata(good, path, lambda m: m.update(format=99)),
        "format 99, this version reads 1",
    ),
    "another schema": (
        lambda path, good: _with_metadata(good, path, lambda m: m["schema"].update(hash="0")),
        "trained on other 'state' features",
    ),
    "metadata without a schema": (
        lambda path, good: _with_metadata(good, path, lambda m: m.pop("schema")),
        "no metadata of a policy",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_file_is_answered_with_one_sentence_and_nothing_in_it_runs(
    kind, policy_file, tmp_path, capsys
) -> None:
    write, message = WRONG[kind]
    path = tmp_path / "wrong.pt"
    write(path, policy_file)
    for load in (load_policy, load_model):
        with pytest.raises(InputError, match=message) as caught:
            load(path)
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    assert "unpickled" not in capsys.readouterr().out


OTHER_SIZES = [
    *({"width": 64}, {"width": 16}, {"heads": 3}, {"heads": 2.0}, {"inner": 128}, {"width": None}),
    *({"layers": 0}, {"layers": 1}, {"layers": 3}, {"layers": 10**9}, {"layers": "2"}),
    *({"self_attention": False}, {"cross_attention": False}, {"task": "instance"}),
    {"backbone": "bgnn"},
]


@needs_kernels
@pytest.mark.parametrize("sizes", OTHER_SIZES, ids=str)
def test_metadata_of_another_network_are_refused(sizes, policy_file, tmp_path) -> None:
    path = tmp_path / "policy.pt"
    _with_metadata(policy_file, path, lambda m: m["config"].update(sizes))
    with pytest.raises(InputError, match=r"policy\.pt is damaged: .*; copy or export it again"):
        load_policy(path)


@needs_kernels
def test_metadata_of_a_graph_network_of_another_depth_are_refused(tmp_path) -> None:
    good = export_policy(trained("bgnn"), tmp_path / "good.pt")
    for layers in (1, 3):
        _with_metadata(good, tmp_path / "p.pt", lambda m, n=layers: m["config"].update(layers=n))
        with pytest.raises(InputError, match=r"p\.pt is damaged: .*another network"):
            load_policy(tmp_path / "p.pt")


def test_a_switch_is_on_or_off_whatever_number_it_is(policy_file, tmp_path) -> None:
    path = tmp_path / "policy.pt"
    _with_metadata(policy_file, path, lambda m: m["config"].update(self_attention=5))
    graph = random_graph(20, 30, 200)
    scores = [load_policy(file)(*graph.tensors()) for file in (path, policy_file)]
    assert torch.equal(*scores)


@pytest.mark.parametrize("name", sorted(shipped_policies()))
def test_every_shipped_policy_still_loads(name) -> None:
    assert load_policy(name).metadata["config"] == load_model(name).config


def test_a_run_stands_for_its_policy(policy_file) -> None:
    run = policy_file.parent / "run"
    run.mkdir()
    shutil.copy(policy_file, run / "policy.pt")
    assert find_policy(run) == run / "policy.pt"


def test_a_missing_policy_is_named_with_what_there_is(tmp_path, monkeypatch) -> None:
    shipped = {"setcover-dualattn": tmp_path / "a.pt", "setcover-bgnn": tmp_path / "b.pt"}
    monkeypatch.setattr(policies, "shipped_policies", lambda: shipped)
    assert policies.find_policy("setcover") == tmp_path / "a.pt"
    assert policies.find_policy("setcover-bgnn") == tmp_path / "b.pt"
    with pytest.raises(InputError, match=r"no policy knapsack.*setcover-dualattn, setcover-bgnn"):
        load_policy("knapsack")


def test_on_a_full_disk_exporting_says_so_and_leaves_the_old_file(tmp_path) -> None:
    path = tmp_path / "policy.pt"
    path.write_text("the old one")
    program = (
        "import resource, sys\n"
        "from learn2branch import build_model, export_policy\n"
        "model = build_model('bgnn', size='small')\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000))\n"
        "export_policy(model, sys.argv[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True
    )
    # Python's own exit, not an abort of torch's writer.
    assert done.returncode == 1
    assert "policy.pt could not be written (File too large)" in done.stderr.splitlines()[-1]
    assert [file.name for file in tmp_path.iterdir()] == ["policy.pt"]
    assert path.read_text() == "the old one"
