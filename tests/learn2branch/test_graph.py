import pytest
import torch

from learn2branch import BipartiteGraph


def random_graph(constraints: int, variables: int, edges: int) -> BipartiteGraph:
    cells = torch.randperm(constraints * variables)[:edges]
    return BipartiteGraph(
        torch.randn(constraints, 5),
        torch.stack([cells // variables, cells % variables]),
        torch.randn(edges),
        torch.randn(variables, 19),
    )


def test_a_batch_taken_apart_gives_the_graphs_back() -> None:
    graphs = [random_graph(3, 4, 7), random_graph(1, 1, 1), random_graph(5, 2, 0)]
    batch = BipartiteGraph.batch(graphs)
    assert batch.num_graphs == 3
    for before, after in zip(graphs, batch.unbatch(), strict=True):
        for a, b in zip(before.tensors(), after.tensors(), strict=True):
            assert torch.equal(a, b)


def test_batches_can_be_batched_again() -> None:
    graphs = [random_graph(3, 4, 7), random_graph(2, 2, 3), random_graph(4, 5, 6)]
    nested = BipartiteGraph.batch([BipartiteGraph.batch(graphs[:2]), graphs[2]])
    flat = BipartiteGraph.batch(graphs)
    assert torch.equal(nested.edge_index, flat.edge_index)
    assert torch.equal(nested.variable_ptr, flat.variable_ptr)


def test_an_empty_list_cannot_be_batched() -> None:
    with pytest.raises(ValueError, match="empty"):
        BipartiteGraph.batch([])


def test_a_graph_is_on_one_device() -> None:
    tensors = [tensor.to("meta") for tensor in random_graph(3, 4, 7).tensors()]
    graph = BipartiteGraph(*tensors)
    assert graph.constraint_ptr.device == graph.variable_ptr.device == tensors[0].device
