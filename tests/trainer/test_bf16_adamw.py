"""AdamW in bfloat16, against a plain loop and against AdamW in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.trainer.conftest import MakeConfig
from tests.trainer.test_policy import add_up, make_policy, train, whole_batch
from trimaran.config import parse_config
from trimaran.errors import InputError

pytestmark = pytest.mark.usefixtures("single_rank")
BF16 = {"dtype": "bfloat16"}


def rounded(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32).bfloat16())


def test_each_number_is_that_of_a_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from services.trainer.megatron import bf16_adamw

    monkeypatch.setattr(bf16_adamw, "CHUNK", 3)
    torch.manual_seed(1)
    weight = torch.nn.Parameter(torch.randn(2, 5).bfloat16())
    plain = [[w, 0.0, 0.0, 0.0] for w in weight.flatten().tolist()]
    adam = bf16_adamw.Bf16AdamW(
        [{"params": [weight], "weight_decay": 0.1}], lr=1e-3, betas=(0.9, 0.95), eps=1e-8
    )
    for step in range(1, 5):
        gradient = torch.randn(2, 5)
        weight.decoupled_grad = gradient  # type: ignore[attr-defined]
        adam.step()
        for one, g in zip(plain, gradient.flatten().tolist(), strict=True):
            p, m, v, c = one
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
            divisor = math.sqrt(v / (1 - 0.95**step)) + 1e-8
            x = (p + c) * (1 - 1e-3 * 0.1) - 1e-3 * (m / (1 - 0.9**step)) / divisor
            one[:] = rounded(x), rounded(m), rounded(v), rounded(x - rounded(x))
        state = adam.state[weight]
        found = (weight, state["exp_avg"], state["exp_avg_sq"], state["compensation"])
        for number, tensor in enumerate(found):
            wanted = torch.tensor([one[number] for one in plain]).view(2, 5)
            torch.testing.assert_close(tensor.detach().float(), wanted, rtol=0.008, atol=1e-6)


def gradient_norm(policy: Any) -> float:
    gradients = [weight.main_grad.norm() for _, weight in policy._trained_weights()]
    return torch.stack(gradients).norm().item()


def test_a_model_follows_the_one_with_main_weights(make_config: MakeConfig) -> None:
    """After ten updates both are near each other, and far from the start."""

    def trained(optimizer: str) -> tuple[dict[str, torch.Tensor], float]:
        trainer = {"optimizer": optimizer, "learning_rate": 1e-4, "freeze": ["lm_head.weight"]}
        policy, norm = make_policy(make_config("llama", model=BF16, trainer=trainer)), 0.0
        for _ in range(10):
            policy.zero_gradients()
            policy.forward_backward([whole_batch()], add_up)
            norm = policy.sum_gradients()
            assert norm == pytest.approx(gradient_norm(policy), rel=1e-5)
            policy.update(1e-4)
        state = policy.state()
        return {
            name.removeprefix("main."): tensor.float() + state.get(f"compensation.{name[5:]}", 0)
            for name, tensor in state.items()
            if name.startswith("main.")
        }, norm

    (main, norm), (ours, our_norm) = trained("adamw"), trained("adamw_bf16")
    assert our_norm == pytest.approx(norm, rel=0.02)
    for name, tensor in main.items():
        difference = (ours[name] - tensor).abs().mean()
        # A weight itself began as the nearest bfloat16 number.
        assert difference < 2e-3 * tensor.abs().mean() + 1e-4, name
    assert all(tensor.dtype == torch.float32 for tensor in main.values())


def test_it_keeps_everything_in_bfloat16(make_config: MakeConfig) -> None:
    policy = make_policy(make_config("qwen3_moe", model=BF16, trainer={"optimizer": "adamw_bf16"}))
    train(policy)
    state = policy.state()
    kinds = {"main", "exp_avg", "exp_avg_sq", "compensation"}
    assert {name.partition(".")[0] for name in state} == kinds
    assert all(tensor.dtype == torch.bfloat16 for tensor in state.values())


@pytest.mark.parametrize(
    ("trainer", "dtype", "words"),
    [
        ({}, "float32", "trainer.optimizer: adamw_bf16 is for model.dtype bfloat16"),
        ({"beta2": 0.999}, "bfloat16", "beta2: 0.999 with optimizer adamw_bf16: a moment"),
    ],
)
def test_what_bfloat16_cannot_do_is_refused(trainer: dict, dtype: str, words: str) -> None:
    tree = {"data": {"train": "t"}, "reward": {"rules": {"exact": 1}}}
    model = {"path": "m", "dtype": dtype}
    with pytest.raises(InputError, match=words):
        parse_config({**tree, "model": model, "trainer": {"optimizer": "adamw_bf16", **trainer}})
