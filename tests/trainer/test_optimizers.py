"""Resuming with optimizers that megatron-core may pick on other machines, by stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.rank import TrainerRank
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.test_policy import make_policy
from tests.trainer.test_rank import save, started
from trimaran.errors import InputError

pytestmark = pytest.mark.usefixtures("single_rank")


class CountsInGroup(torch.optim.Optimizer):
    """AdamW that counts its updates in `param_group["step"]`, as do MindSpeed's AdamW
    (mindspeed/core/optimizer/adamw.py) and the FusedAdam of TransformerEngine and apex."""

    def __init__(
        self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float, **_: Any
    ):
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            for weight in group["params"]:
                moments = self.state[weight]
                if not moments:
                    moments["exp_avg"] = torch.zeros_like(weight)
                    moments["exp_avg_sq"] = torch.zeros_like(weight)
                moments["exp_avg"].lerp_(weight.grad, 1 - beta1)
                moments["exp_avg_sq"].lerp_(weight.grad.square(), 1 - beta2)
                mean = moments["exp_avg"] / (1 - beta1 ** group["step"])
                square = moments["exp_avg_sq"] / (1 - beta2 ** group["step"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(group["lr"] * mean / (square.sqrt() + group["eps"]))


class TorchAdamW(torch.optim.AdamW):
    """That counts in each parameter's own state, in place."""

    def __init__(self, params: Any, adam_w_mode: bool, **options: Any) -> None:
        super().__init__(params, **options)


def use(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """As where TransformerEngine or apex is installed."""
    monkeypatch.setattr("megatron.core.optimizer.Adam", kind)
    monkeypatch.setattr("megatron.core.optimizer.USING_PYTORCH_OPTIMIZER", False)


def main_weights(rank: TrainerRank) -> torch.Tensor:
    state = rank._policy.state()
    return torch.cat([state[name].flatten() for name in state if name.startswith("main.")])


@pytest.mark.parametrize("kind", [CountsInGroup, TorchAdamW])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
async def test_the_first_resumed_update_is_that_of_the_uninterrupted_run(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type, dtype: str
) -> None:
    use(monkeypatch, kind)
    config = make_config(model={"dtype": dtype})

    async with started(config, tmp_path) as rank:
        assert type(rank._policy._adams[0]) is kind  # type: ignore[attr-defined]
        await rank.train(random_batch(1))
        await rank.train(random_batch(2))
        await save(rank, 2)
        await rank.train(random_batch(3))
        weights = main_weights(rank)
    async with started(config, tmp_path) as resumed:
        await resumed.train(random_batch(3))
        assert torch.equal(main_weights(resumed), weights)


@pytest.mark.parametrize("key", ["main", "exp_avg", "exp_avg_sq"])
def test_a_state_without_a_weight_or_a_moment_is_refused_before_anything_changes(
    make_config: MakeConfig, key: str
) -> None:
    policy, other = make_policy(make_config()), make_policy(make_config())
    policy.zero_gradients()
    policy.sum_gradients()
    policy.update(1e-3)
    state = policy.state()
    name = next(name for name in reversed(state) if name.startswith(f"{key}."))
    reshaped = {**state, name: state[name].flatten()[:1]}
    before = {one: tensor.clone() for one, tensor in other.state().items()}
    with pytest.raises(InputError, match=rf"the checkpoint's {name} has shape \(1,\)"):
        other.load_state(reshaped, num_updates=1)
    del state[name]
    with pytest.raises(InputError, match=f"the checkpoint lacks {name}"):
        other.load_state(state, num_updates=1)
    assert all(torch.equal(other.state()[one], tensor) for one, tensor in before.items())
