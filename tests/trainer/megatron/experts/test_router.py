"""Losses on routers, against plain transformers with transformers' own loss; loads of experts by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from services.trainer.step.batch import PackedBatch, StepBatch, pack
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import unfused
from tests.trainer.plain_policy import plain_logprobs
from tests.trainer.processes import running_ranks
from tests.trainer.test_policy import CPU, add_up, gradients_of, make_policy

BALANCE, Z = 0.3, 0.2
LOSSES = {"router": {"load_balancing": BALANCE, "z_loss": Z}}


def single_answers(step: int) -> PackedBatch:
    """One completion behind each prompt, so that transformers sees the same tokens."""
    whole = StepBatch.of(random_batch(step).groups, mask_truncated=False)
    return pack(whole, [(place, group[:1]) for place, group in enumerate(whole.members)], CPU)


def router_loss(model: Any, batches: list[PackedBatch]) -> torch.Tensor:
    """Of each micro-batch the sum over layers, weighed by its tokens."""
    total = torch.zeros(())
    for packed in batches:
        sequences = packed.token_ids_N.split([group.num_tokens for group in packed.groups])
        logits = [model(input_ids=one[None], output_router_logits=True) for one in sequences]
        for layer in range(model.config.num_hidden_layers):
            own = torch.cat([one.router_logits[layer].view(-1, 4) for one in logits])
            # transformers adds up what each of a token's two experts contributes.
            balance = load_balancing_loss_func((own,), 4, 2) / 2
            z = own.logsumexp(-1).square().mean()
            total = total + len(own) * (BALANCE * balance + Z * z)
    return total / sum(len(packed.token_ids_N) for packed in batches)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_with_both_losses_are_those_of_transformers(
    family: str, recompute: bool, make_config: MakeConfig
) -> None:
    config = make_config(family, trainer={**LOSSES, "recompute": recompute})
    policy = make_policy(config)
    model: Any = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    batches = [single_answers(1), single_answers(2)]
    policy.zero_gradients()
    policy.forward_backward(batches, add_up)
    loss = router_loss(model, batches)
    (loss + sum(plain_logprobs(model, one, 0.7).sum() for one in batches)).backward()
    found = gradients_of(policy)
    named: Any = model.named_parameters()
    wanted = unfused({name: parameter.grad for name, parameter in named})
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-5, msg=name)
    plain = make_policy(make_config(family))
    plain.zero_gradients()
    plain.forward_backward(batches, add_up)
    name = "model.layers.0.mlp.gate.weight"
    assert (gradients_of(plain)[name] - found[name]).abs().max() > 1e-3


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize("recompute", [False, True])
def test_each_token_counts_once_with_each_of_its_experts(
    recompute: bool, make_config: MakeConfig
) -> None:
    policy = make_policy(make_config("qwen3_moe", trainer={"recompute": recompute}))
    packed = single_answers(1)
    policy.forward([packed])  # does not count
    policy.zero_gradients()
    policy.forward_backward([packed, packed], add_up)
    loads_LE = policy.take_expert_loads()
    assert loads_LE.shape == (2, 4)
    assert loads_LE.sum(-1).tolist() == [2 * 2 * len(packed.token_ids_N)] * 2
    assert not policy.take_expert_loads().any()  # nothing since


@pytest.mark.e2e
async def test_ranks_together_have_the_losses_and_loads_of_one(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """One micro-batch: the loss of several depends on what is in each. z-loss alone does not."""
    sizes = {"tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}

    async def train(name: str, split: dict[str, Any]) -> dict[str, float]:
        trainer = {**split, **LOSSES, "micro_batch_tokens": 400}
        config = make_config("qwen3_moe", trainer=trainer)
        async with running_ranks(config, tmp_path / name) as client:
            answer = await client.train(random_batch(1))
            assert (await client.train(random_batch(1))).metrics == answer.metrics
            return answer.metrics

    alone, together = await train("alone", {}), await train("together", sizes)
    # A padding token at most, for equal shares of the tokens.
    assert together["trainer/grad_norm"] == pytest.approx(alone["trainer/grad_norm"], rel=1e-2)
    for name in ("busiest/mean", "entropy/min"):
        key = f"trainer/experts/{name}"
        assert together[key] == pytest.approx(alone[key], rel=0.05)
