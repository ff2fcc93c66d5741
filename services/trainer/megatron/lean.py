"""Norm and gated activation that keep less for the backward pass than torch's autograd does.

Both compute the same numbers as before. Of C channels of the model and F of the MLP, autograd keeps 8 C
bytes of a norm (on the CPU, where torch splits it into float32 steps) and 10 F of a gated activation in
bfloat16; these keep 2 C and 6 F, and compute the rest again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


class _RMSNorm(torch.autograd.Function):
    """Keeps its input. With n = x / rms(x) and u = gradient x weight: dx = (u - n mean(u n)) / rms(x)."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return F.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gradient, normed, size = gradients[0].float(), x.float(), x.shape[-1]
        length = torch.linalg.vector_norm(normed, dim=-1, keepdim=True)
        inverse = length.square_().div_(size).add_(ctx.eps).rsqrt_()
        normed = normed * inverse
        products = normed * gradient
        of_weight = products.flatten(0, -2).sum(0).to(weight.dtype)
        shares = (products @ weight.float()).div_(size)[..., None]
        of_x = (gradient * weight).addcmul_(normed, shares, value=-1).mul_(inverse)
        return of_x.to(x.dtype), of_weight, None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As F.rms_norm over the last dimension. Accelerators have a kernel of their own that keeps as little."""
    if x.device.type != "cpu" or not torch.is_grad_enabled():
        return F.rms_norm(x, weight.shape, weight, eps)
    return _RMSNorm.apply(x, weight, eps)  # type: ignore[no-any-return]


class _SwiGLU(torch.autograd.Function):
    """silu(gate) x up, of both in one tensor, which is all that it keeps."""

    @staticmethod
    def forward(ctx: Any, both: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (both,), gradient = ctx.saved_tensors, gradients[0]
        gate, up = both.chunk(2, dim=-1)
        answer = torch.empty_like(both)
        of_gate, of_up = answer.chunk(2, dim=-1)
        torch.mul(gradient, F.silu(gate), out=of_up)
        torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
        return answer


class SwiGLU(torch.nn.Module):
    """[..., 2 F] -> [..., F]: gate and up stand one after the other. Where megatron-core's MLP takes
    an activation of TransformerEngine, whose calls this one has."""

    def __init__(self, config: Any) -> None:
        super().__init__()

    def forward(self, both: torch.Tensor) -> torch.Tensor:
        return _SwiGLU.apply(both)  # type: ignore[no-any-return]


class _GeGLU(torch.autograd.Function):
    """The same with gelu, by its tanh approximation."""

    @staticmethod
    def forward(ctx: Any, both: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(both)
        gate, up = both.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (both,), gradient = ctx.saved_tensors, gradients[0]
        gate, up = both.chunk(2, dim=-1)
        of_up = gradient * F.gelu(gate, approximate="tanh")
        of_gate = torch.ops.aten.gelu_backward(gradient * up, gate, approximate="tanh")
        return torch.cat([of_gate, of_up], dim=-1)


class GeGLU(SwiGLU):
    def forward(self, both: torch.Tensor) -> torch.Tensor:
        return _GeGLU.apply(both)  # type: ignore[no-any-return]
