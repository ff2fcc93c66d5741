"""Norm and gated activation: the numbers of plain autograd, and less kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from services.trainer.megatron.lean import SwiGLU, rms_norm

EPSILON = 1e-6
DTYPES = (torch.float32, torch.bfloat16)
Answer = tuple[torch.Tensor, list[torch.Tensor], int]


def run(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Answer:
    """The output, the gradients of the inputs, and how many bytes were kept between."""
    leaves = [one.detach().clone().requires_grad_() for one in inputs]
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = function(*leaves)
    torch.manual_seed(1)
    out.backward(torch.randn_like(out))
    size = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    return out.detach(), [leaf.grad for leaf in leaves if leaf.grad is not None], size


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, EPSILON)


def plain_swiglu(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return F.silu(gate) * up


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_norm_is_that_of_torch_and_keeps_its_input_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(7, 1, 32, dtype=dtype), 1 + 0.1 * torch.randn(32, dtype=dtype)
    out, gradients, size = run(lambda x, w: rms_norm(x, w, EPSILON), x, weight)
    wanted, wanted_gradients, _ = run(plain_norm, x, weight)
    assert torch.equal(out, wanted)
    for have, want in zip(gradients, wanted_gradients, strict=True):
        torch.testing.assert_close(have, want)
    assert size == x.nbytes + weight.nbytes


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gated_activation_is_bit_for_bit_that_of_autograd(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    both = torch.randn(7, 1, 64, dtype=dtype)
    out, (gradient,), size = run(SwiGLU(None), both)
    wanted, (wanted_gradient,), wanted_size = run(plain_swiglu, both)
    assert torch.equal(out, wanted)
    assert torch.equal(gradient, wanted_gradient)
    assert size == both.nbytes < wanted_size


def test_without_gradients_nothing_is_kept() -> None:
    with torch.no_grad():
        assert rms_norm(torch.ones(2, 4), torch.ones(4), EPSILON).grad_fn is None
