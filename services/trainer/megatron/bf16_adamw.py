"""AdamW with weights, moments and a compensation for rounding in bfloat16; docs/algorithms.md has the formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from megatron.core.optimizer.optimizer import ChainedOptimizer, FP32Optimizer

CHUNK = 1 << 22
"""Elements that exist in float32 at a time."""
STATE = ("exp_avg", "exp_avg_sq", "compensation")
"""What it keeps of each parameter: two moments, and what rounding took off the weight."""


class Bf16AdamW(torch.optim.Optimizer):
    """Reads gradients, float32, from `decoupled_grad` of each parameter: a bfloat16 parameter cannot
    have a float32 `grad`. Counts its updates in `param_group["step"]`, as MindSpeed's AdamW does.

    Example: Bf16AdamW([{"params": [weight]}], lr=1e-6, betas=(0.9, 0.95), eps=1e-8).step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state |= {key: torch.zeros_like(weight) for key in STATE}
                columns = (weight, weight.decoupled_grad, *(state[key] for key in STATE))
                parts = [column.view(-1).split(CHUNK) for column in columns]
                for chunk in zip(*parts, strict=True):
                    _update(chunk, group)


def _update(chunk: Sequence[torch.Tensor], group: Mapping[str, Any]) -> None:
    """In place: weight, gradient and `STATE`. The sums are in float32, and rounded once."""
    weight, gradient, average, square, compensation = chunk
    beta1, beta2 = group["betas"]
    mean = average.float().lerp_(gradient, 1 - beta1)
    squares = square.float().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    average.copy_(mean)
    square.copy_(squares)
    divisor = squares.div_(1 - beta2 ** group["step"]).sqrt_().add_(group["eps"])
    exact = weight.float().add_(compensation).mul_(1 - group["lr"] * group["weight_decay"])
    exact.addcdiv_(mean, divisor, value=-group["lr"] / (1 - beta1 ** group["step"]))
    weight.copy_(exact)
    compensation.copy_(exact.sub_(weight))


class _DecoupledGradients(FP32Optimizer):
    """megatron-core's optimizer of parameters that have no other main weights, with gradients where
    `Bf16AdamW` reads them."""

    def prepare_grads(self) -> bool:
        for weight in self.get_parameters():
            weight.decoupled_grad = weight.main_grad  # type: ignore[attr-defined]
        return False


def with_bf16_adamw(optimizer: Any) -> ChainedOptimizer:
    """`optimizer`: megatron-core's, made for float32; with its groups of parameters and of ranks. One for
    which nothing on this rank trains stays as it is."""
    return ChainedOptimizer(
        [one if one.optimizer is None else _replaced(one) for one in optimizer.chained_optimizers]
    )


def _replaced(one: Any) -> _DecoupledGradients:
    adam = one.optimizer
    defaults = {key: adam.defaults[key] for key in ("lr", "betas", "eps", "weight_decay")}
    # The gradient's norm is then that of decoupled_grad.
    one.config.use_precision_aware_optimizer_no_fp8_or_ds_fp8 = True
    made = _DecoupledGradients(
        Bf16AdamW(adam.param_groups, **defaults), one.config, one.init_state_fn
    )
    for name in ("grad_stats_parallel_group", "tp_group"):  # as megatron-core itself sets them
        setattr(made, name, getattr(one, name))
    return made
