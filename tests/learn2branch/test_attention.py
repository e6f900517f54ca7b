"""Fast attention equals the plain, dense definition; its gradients are right."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_graphs import graphs, random_graph

from learn2branch import attention, kernels
from learn2branch.attention import (
    CLAMP,
    EPSILON,
    cross_attention,
    cross_attention_plain,
    self_attention,
    self_attention_plain,
)
from learn2branch.backbones.bgnn import edge_sums
from learn2branch.nonzeros import NonZeros

quick = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
HEADS = 2


def nonzeros_of(graph, dtype=torch.float32):
    sizes = (graph.num_constraints, graph.num_variables)
    return NonZeros.from_edges(graph.edge_index, graph.edge_values.to(dtype), *sizes)


def dense(graph, dtype=torch.float32):
    A = torch.zeros(graph.num_constraints, graph.num_variables, dtype=dtype)
    A[graph.edge_index[0], graph.edge_index[1]] = graph.edge_values.to(dtype)
    return A


def random_tensors(*shapes, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


@quick
@given(graph=graphs(), d=st.sampled_from([5, 8, 24, 32, 64]), heads=st.sampled_from([1, 2, 3]))
def test_cross_attention_equals_the_dense_definition(kernels_or_not, graph, d, heads) -> None:
    n, m = graph.num_constraints, graph.num_variables
    q, x = random_tensors((n, heads * d), (m, d))
    fast = cross_attention(q, x, nonzeros_of(graph)).view(n, heads, d)
    for h in range(heads):
        # Here the query has the coefficient vector and the scaling in it already.
        query = q.view(n, heads, d)[:, h] * d**0.5
        plain = cross_attention_plain(query, x, x, torch.ones(d), dense(graph))
        torch.testing.assert_close(fast[:, h], plain, atol=2e-5, rtol=1e-4)


@quick
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    d=st.sampled_from([5, 16, 64]),
    some=st.booleans(),
)
def test_self_attention_equals_the_dense_definition_graph_by_graph(
    kernels_or_not, sizes, d, some
) -> None:
    asked = [size // 2 for size in sizes] if some else sizes
    n, k = sum(sizes), sum(asked)
    Q, K, x = random_tensors((k, HEADS * d), (n, HEADS * d), (n, d))
    fast = self_attention(Q, K, x, asked, sizes).view(k, HEADS, d)
    parts = zip(
        Q.view(k, HEADS, d).split(asked),
        K.view(n, HEADS, d).split(sizes),
        x.split(sizes),
        fast.split(asked),
        strict=True,
    )
    for q, key, value, result in parts:
        for h in range(HEADS):
            plain = self_attention_plain(q[:, h], key[:, h], value)
            torch.testing.assert_close(result[:, h], plain, atol=1e-5, rtol=1e-4)


DEGENERATE = {
    "a random graph": (4, 5, 9),
    "more edges than a vector holds": (2, 19, 36),
    "a single constraint": (1, 5, 3),
    "one edge": (3, 3, 1),
    "no edge": (2, 3, 0),
}


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("sizes", DEGENERATE.values(), ids=DEGENERATE)
def test_gradients_of_cross_attention_pass_gradcheck(kernels_or_not, sizes, heads) -> None:
    entries = nonzeros_of(random_graph(*sizes), torch.float64)
    q, x = random_tensors((sizes[0], heads * 8), (sizes[1], 8), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda q, x: cross_attention(q, x, entries), (q, x))


def test_gradients_of_self_attention_pass_gradcheck(kernels_or_not) -> None:
    d = 16
    inputs = random_tensors((6, HEADS * d), (9, HEADS * d), (9, d), dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda Q, K, x: self_attention(Q, K, x, [2, 0, 4], [3, 1, 5]), inputs, fast_mode=True
    )


@pytest.mark.parametrize("sizes", DEGENERATE.values(), ids=DEGENERATE)
def test_gradients_of_the_graph_networks_sums_pass_gradcheck(kernels_or_not, sizes) -> None:
    entries = nonzeros_of(random_graph(*sizes), torch.float64)
    inputs = random_tensors((sizes[0], 8), (sizes[1], 8), (8,), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t, s, e: edge_sums(t, s, e, entries), inputs)


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("d", [8, 24, 32, 64, 72])
def test_compiled_gradients_equal_those_of_torch_in_single_precision(d, heads, monkeypatch) -> None:
    graph = random_graph(30, 50, 300)
    entries = nonzeros_of(graph)
    q, x = random_tensors((30, heads * d), (50, d))
    weight = torch.randn(30, heads * d)
    results = []
    for compiled in (True, False):
        if not compiled:
            monkeypatch.setattr(attention, "usable", lambda *_: False)
        out = cross_attention(q, x, entries)
        results.append((out, *torch.autograd.grad((out * weight).sum(), (q, x))))
    for ours, torchs in zip(*results, strict=True):
        torch.testing.assert_close(ours, torchs, atol=1e-5, rtol=1e-4)


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
def test_compiled_gradients_refuse_to_be_differentiated_again() -> None:
    entries = nonzeros_of(random_graph(6, 9, 20))
    Q, K, x = random_tensors((9, HEADS * 16), (9, HEADS * 16), (9, 16))
    results = [
        self_attention(Q, K, x, [9], [9]),
        cross_attention(Q[:6], x, entries),
        edge_sums(Q[:6, :16], x, x[0], entries),
    ]
    for result in results:
        [gradient] = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.square().sum().backward()


def test_coefficients_have_gradients_too(kernels_or_not) -> None:
    graph = random_graph(6, 9, 20)
    q, x, values = random_tensors((6, 8), (9, 8), (20,), dtype=torch.float64)

    def attend(q, x, values):
        return cross_attention(q, x, NonZeros.from_edges(graph.edge_index, values, 6, 9))

    def sums(q, x, values):
        return edge_sums(q, x, x[0], NonZeros.from_edges(graph.edge_index, values, 6, 9))

    for function in (attend, sums):
        assert torch.autograd.gradcheck(function, (q, x, values))


def test_single_and_double_precision_are_not_mixed_in_a_kernel(kernels_or_not) -> None:
    entries = nonzeros_of(random_graph(6, 9, 20))
    q, x = random_tensors((6, HEADS * 16), (9, 16))
    with pytest.raises(RuntimeError, match=r"expected .*type"):
        cross_attention(q, x.double(), entries)
    with pytest.raises(RuntimeError, match=r"expected .*type"):
        self_attention(q, q.double(), x[:6], [6], [6])
    target, edge = q[:, :16], x[0]
    mixed = edge_sums(target, x, edge.double(), entries)
    torch.testing.assert_close(mixed.float(), edge_sums(target, x, edge, entries))


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
def test_the_compiled_exponential_is_right_to_a_millionth() -> None:
    p = torch.linspace(-CLAMP - 1, CLAMP + 1, 4001)
    n, d = p.shape[0], 8
    q, x = torch.zeros(1, d), torch.zeros(n, d)
    q[0, 0], x[:, 0] = 1, p
    weight, total, out = torch.empty(1, n), torch.empty(1, 1), torch.empty(1, d)
    pointers, columns, values = torch.tensor([0, n]), torch.arange(n), torch.ones(n)
    tensors = (pointers, columns, values, q, x, weight, total, out)
    kernels.KERNELS.attention_forward(False, 1, 1, 1, d, *map(kernels.address, tensors))
    expected = p.double().clamp(-CLAMP, CLAMP).exp()
    assert ((weight[0] - expected).abs() / expected).max() < 1e-6
    assert total.item() == pytest.approx(expected.sum().item() + EPSILON, rel=1e-6)


def test_two_threads_give_what_one_gives() -> None:
    graph = random_graph(200, 300, 9000)
    q, x = random_tensors((200, HEADS * 32), (300, 32))
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        out = cross_attention(q, x, nonzeros_of(graph))
        results.append((out, *torch.autograd.grad(out.square().sum(), (q, x))))
    torch.set_num_threads(1)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_a_score_that_is_not_a_number_stays_one(kernels_or_not) -> None:
    graph = random_graph(3, 40, 100)
    q, x = random_tensors((3, HEADS * 8), (40, 8))
    poisoned = x.detach().clone()
    poisoned[int(graph.edge_index[1, 0]), 2] = torch.nan
    out = cross_attention(q, poisoned, nonzeros_of(graph))
    assert out[int(graph.edge_index[0, 0])].isnan().all()


@quick
@given(graph=graphs())
def test_nonzeros_hold_the_edges_in_both_orders(kernels_or_not, graph) -> None:
    entries = nonzeros_of(graph)
    A = dense(graph)
    for rows, matrix in ((entries.rows, A), (entries.columns, A.T)):
        rebuilt = torch.zeros_like(matrix)
        rebuilt[rows.row_of_entry(), rows.columns] = rows.values
        assert torch.equal(rebuilt, matrix)
    assert torch.equal(entries.rows.values, entries.columns.values[entries.rows.twins])
    assert torch.equal(entries.columns.values, entries.rows.values[entries.columns.twins])
    some = torch.arange(graph.num_constraints - 1, -1, -2)
    chosen = entries.select(some).rows
    rebuilt = torch.zeros(some.shape[0], graph.num_variables)
    rebuilt[chosen.row_of_entry(), chosen.columns] = chosen.values
    assert torch.equal(rebuilt, A[some])


def test_edges_and_values_that_do_not_fit_together_are_refused(kernels_or_not) -> None:
    index, values = torch.tensor([[0, 1, 1], [4, 0, 2]]), torch.ones(3)
    wrong = [
        (index.int(), values),
        (index.double(), values),
        (index, values[:2]),
        (index[:, :2], values),
        (index[:1], values),
        (index.T, values),
        (index, values[:, None]),
    ]
    for edges in wrong:
        with pytest.raises(ValueError, match=r"int64 edge_index of shape \(2, e\)"):
            NonZeros.from_edges(*edges, 2, 5)
    assert NonZeros.from_edges(index, values, 2, 5).rows.pointers.tolist() == [0, 1, 3]


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
def test_an_edge_outside_of_the_graph_is_refused() -> None:
    with pytest.raises(IndexError, match="outside"):
        NonZeros.from_edges(torch.tensor([[0], [5]]), torch.ones(1), 2, 5)
