"""Both backbones equal their straightforward definitions, alone, in batches and permuted."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs, random_graph, straightforward

from learn2branch import BipartiteGraph, InputError, build_model

quick = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MODELS = {
    "dualattn": {},
    "dualattn, small": {"size": "small"},
    "dualattn, coefficients by an MLP": {"edge_encoding": "mlp"},
    "dualattn, no self-attention": {"self_attention": False},
    "dualattn, no cross-attention": {"cross_attention": False},
    "dualattn, odd width": {"width": 10, "inner": 12, "heads": 3, "layers": 2},
    "bgnn": {},
    "bgnn, small": {"size": "small"},
}
each_model = pytest.mark.parametrize("name", MODELS)
each_task = pytest.mark.parametrize("task", ["state", "element", "instance"])


def model_named(name, task="state", **options):
    torch.manual_seed(0)
    model = build_model(name.split(",")[0], task, **MODELS[name], **options)
    for parameter in model.parameters():  # away from zeros and ones
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.fit_normaliser([random_graph(20, 30, 200, model.schema.name)])
    return model


def close(a, b) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@each_model
@each_task
def test_a_model_equals_its_straightforward_definition(name, task, kernels_or_not) -> None:
    model = model_named(name, task)
    definition = straightforward(model)
    for sizes in ((20, 30, 150), (1, 4, 3), (3, 5, 1), (2, 2, 0)):
        graph = random_graph(*sizes, model.schema.name)
        close(model(graph), definition(graph))


@each_model
def test_gradients_equal_those_of_the_straightforward_definition(name) -> None:
    model = model_named(name)
    graph, choice = random_graph(20, 30, 150), 7
    gradients = []
    for forward in (model, straightforward(model)):
        model.zero_grad()
        torch.nn.functional.cross_entropy(forward(graph), torch.tensor(choice)).backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    used = [p for p in model.parameters() if p.grad is not None]
    assert len(used) > 10
    for ours, defined in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, defined, atol=1e-5, rtol=2e-3)


@each_model
@each_task
@quick
@given(data=st.data())
def test_a_graph_scores_the_same_alone_and_in_any_batch(name, task, data) -> None:
    model = model_named(name, task)
    members = data.draw(st.lists(graphs(model.schema.name), min_size=1, max_size=4))
    with torch.no_grad():
        close(model(BipartiteGraph.batch(members)), torch.cat([model(g) for g in members]))


@each_model
@quick
@given(graph=graphs(), seed=st.integers(0, 100))
def test_permuting_nodes_and_edges_permutes_the_scores(name, graph, seed) -> None:
    model = model_named(name)
    generator = torch.Generator().manual_seed(seed)
    new_row = torch.randperm(graph.num_constraints, generator=generator)
    new_column = torch.randperm(graph.num_variables, generator=generator)
    edges = torch.randperm(graph.num_edges, generator=generator)
    permuted = BipartiteGraph(
        torch.empty_like(graph.constraint_features).index_copy(
            0, new_row, graph.constraint_features
        ),
        torch.stack([new_row[graph.edge_index[0]], new_column[graph.edge_index[1]]])[:, edges],
        graph.edge_values[edges],
        torch.empty_like(graph.variable_features).index_copy(
            0, new_column, graph.variable_features
        ),
    )
    with torch.no_grad():
        close(model(permuted)[new_column], model(graph))


@each_model
def test_candidates_get_the_scores_they_have_among_all(name, kernels_or_not) -> None:
    model = model_named(name)
    batch = BipartiteGraph.batch([random_graph(5, 9, 20, seed=s) for s in range(3)])
    candidates = torch.tensor([7, 2, 10, 17, 9])  # none in the last graph
    close(model(batch, candidates), model(batch)[candidates])
    if name.startswith("dualattn"):
        with pytest.raises(ValueError, match="graph by graph"):
            model(batch, candidates.flip(0))


def test_training_on_a_batch_lowers_the_loss() -> None:
    model = model_named("dualattn, small")
    batch = BipartiteGraph.batch([random_graph(6, 10, 30, seed=s) for s in range(16)])
    choice = torch.arange(16) % 10
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(batch).view(16, 10), choice)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 < losses[0]


@pytest.mark.parametrize("name", ["dualattn", "dualattn, coefficients by an MLP"])
def test_scores_stay_finite_for_coefficients_of_any_size(name, kernels_or_not) -> None:
    model = model_named(name)
    graph = random_graph(20, 30, 200)
    for scale in (1e-30, 1e6, 1e18):
        scaled = BipartiteGraph(
            graph.constraint_features,
            graph.edge_index,
            graph.edge_values * scale,
            graph.variable_features,
        )
        assert model(scaled).isfinite().all()


def test_the_normaliser_makes_columns_standard_and_leaves_constant_ones_unscaled() -> None:
    parts = [random_graph(30, 40, 100, seed=s) for s in range(3)]
    for graph in parts:
        graph.variable_features[:, 0] = 7.0
        graph.variable_features[:, 1].mul_(1000).add_(50)
        graph.edge_values.mul_(20)
    model = build_model("dualattn")
    model.fit_normaliser(iter(parts))
    together = BipartiteGraph.batch(parts)
    normal = model.backbone.variable_norm(together.variable_features)
    assert normal[:, 0].abs().max() < 1e-6
    close(normal[:, 1:].mean(dim=0), torch.zeros(18))
    close(normal[:, 1:].var(dim=0, unbiased=False), torch.ones(18))
    # Coefficients are scaled, not shifted: a product with A_ij must keep its sign.
    assert model.backbone.edge_norm.shift.item() == 0
    assert model.backbone.edge_norm(together.edge_values).square().mean().item() == pytest.approx(1)


@pytest.mark.parametrize("backbone", ["dualattn", "bgnn"])
def test_graphs_without_nonzeros_or_constraints_do_not_disturb_the_normaliser(backbone) -> None:
    usual = [random_graph(30, 40, 400, seed=s) for s in range(2)]
    bare = [random_graph(3, 5, 0), random_graph(0, 5, 0)]
    alone, together, fresh = (build_model(backbone) for _ in range(3))
    alone.fit_normaliser(usual)
    together.fit_normaliser([*usual, *bare])
    close(together.backbone.edge_norm.scale, alone.backbone.edge_norm.scale)
    fresh.fit_normaliser(bare)
    assert fresh.backbone.edge_norm.scale.item() == 1
    assert all(model(bare[0]).isfinite().all() for model in (together, fresh))


def test_the_graph_networks_scales_bring_its_messages_to_unit_size() -> None:
    parts = [random_graph(30, 40, 400, seed=s) for s in range(3)]
    model = build_model("bgnn")
    model.fit_normaliser(parts)
    for convolution in model.backbone.convolutions:
        assert convolution.message_norm.scale.item() != 1
        assert convolution.sum_norm.scale.item() != 1
    V, C, entries = model.backbone._embed(BipartiteGraph.batch(parts))
    first = model.backbone.convolutions[0]
    sums = first.sum_norm(first.sums(C, V, entries, "auto"))
    assert sums.square().mean().item() == pytest.approx(1, rel=1e-3)


def test_printing_a_model_shows_its_size_and_architecture() -> None:
    text = repr(build_model("dualattn"))
    assert "parameters" in text and "width=64" in text and "SelfAttention" in text
    count = sum(parameter.numel() for parameter in build_model("dualattn").parameters())
    assert f"{count:,} parameters" in text


def test_the_config_of_a_model_builds_it_again() -> None:
    model = build_model("dualattn", "instance", "small", schema="instance-random", layers=1)
    config = dict(model.config)
    again = build_model(config.pop("backbone"), **config)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backbone": "gcn"}, "no backbone 'gcn': choose from dualattn, bgnn"),
        ({"backbone": "bgnn", "task": "node"}, "no task 'node'"),
        ({"backbone": "bgnn", "size": "huge"}, "no size 'huge'"),
        ({"backbone": "bgnn", "schema": "ecole"}, "no schema 'ecole'"),
        ({"backbone": "bgnn", "heads": 2}, "unexpected keyword argument 'heads'"),
        ({"backbone": "dualattn", "edge_encoding": "none"}, "choose 'linear' or 'mlp'"),
        (
            {"backbone": "dualattn", "self_attention": False, "cross_attention": False},
            "needs self-attention or cross-attention",
        ),
        ({"backbone": "bgnn", "backend": "cuda"}, "no backend 'cuda'"),
        ({"backbone": "bgnn", "layers": 0}, "layers must be .* at least 1, not 0"),
        ({"backbone": "bgnn", "width": -8}, "width must be .* at least 1, not -8"),
        ({"backbone": "dualattn", "heads": 0}, "heads must be .* at least 1, not 0"),
        ({"backbone": "dualattn", "inner": 64.0}, "inner must be a whole number"),
        ({"backbone": "dualattn", "width": None}, "width must be a whole number"),
    ],
)
def test_a_wrong_argument_is_named_with_what_it_could_be(arguments, message) -> None:
    with pytest.raises(InputError, match=message):
        build_model(**arguments)


@each_model
def test_summing_with_torch_scatter_gives_the_same(name) -> None:
    pytest.importorskip("torch_scatter")
    model, other = model_named(name), model_named(name, backend="scatter")
    other.load_state_dict(model.state_dict())
    graph = random_graph(20, 30, 200)
    close(model(graph), other(graph))


def test_asking_for_torch_scatter_where_it_is_missing_says_how_to_get_it(monkeypatch) -> None:
    monkeypatch.setattr("learn2branch.models.find_spec", lambda _: None)
    with pytest.raises(InputError, match="pip install"):
        build_model("bgnn", backend="scatter")
