"""The compiled combination of the two attentions equals its plain definition, gradients too."""

import pytest
import torch

from learn2branch import kernels
from learn2branch.combine import Combination, combine, combine_plain


def random_inputs(n, d=16, heads=2, inner=32, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n)
    matrices = [(heads * d, d), (heads * d, d), (2 * d, d), (d, inner), (inner, d)]
    shapes = [(n, d), (n, heads * d), (n, heads * d), *matrices, *[(d,)] * 9]
    return [
        torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]


def run(function, inputs):
    return function(*inputs[:3], Combination(*inputs[3:]))


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [0, 1, 5, 48, 200])
@pytest.mark.parametrize("sizes", [(16, 1, 32), (32, 2, 64), (64, 2, 128), (48, 3, 16)])
def test_compiled_and_plain_agree_with_their_gradients(n, sizes, threads) -> None:
    inputs = random_inputs(n, *sizes)
    results = []
    torch.set_num_threads(threads)
    for function in (combine, combine_plain):
        out = run(function, inputs)
        weight = torch.linspace(-1, 1, out.numel()).view(out.shape)
        results.append((out, *torch.autograd.grad((out * weight).sum(), inputs)))
    torch.set_num_threads(1)
    assert "Combine" in type(results[0][0].grad_fn).__name__
    for ours, plain in zip(*results, strict=True):
        scale = max(1.0, plain.abs().max().item()) if plain.numel() else 1.0
        torch.testing.assert_close(ours, plain, atol=2e-5 * scale, rtol=1e-4)


@pytest.mark.skipif(kernels.KERNELS is None, reason="the kernels were not compiled here")
def test_compiled_gradients_refuse_to_be_differentiated_again() -> None:
    inputs = random_inputs(5)
    loss = run(combine, inputs).square().sum()
    [gradient] = torch.autograd.grad(loss, inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_single_and_double_precision_are_not_mixed_in_a_kernel(kernels_or_not) -> None:
    inputs = random_inputs(5)
    with pytest.raises(RuntimeError, match="expected scalar type"):
        run(combine, [*inputs[:-1], inputs[-1].double()])


def test_gradients_pass_gradcheck(kernels_or_not) -> None:
    inputs = random_inputs(50, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *tensors: run(combine, tensors), inputs, fast_mode=True, atol=1e-4
    )
