"""The megatron-core policy as one rank, against plain transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.trainer.batch import PackedBatch, pack, prepare_mini_batch
from services.trainer.megatron.architecture import read_architecture
from services.trainer.model_files import load_tensors
from tests.trainer.batches import random_batch
from tests.trainer.plain_policy import plain_logprobs
from trimaran.config import AlgorithmSection, RunConfig

pytestmark = pytest.mark.usefixtures("single_rank")
CPU = torch.device("cpu")


def make_policy(config: RunConfig):
    from services.trainer.megatron.policy import MegatronPolicy

    return MegatronPolicy(config, read_architecture(config.model.path), CPU)


def whole_batch() -> PackedBatch:
    groups = prepare_mini_batch(random_batch(1).groups, AlgorithmSection(kl_coefficient=1.0))
    return pack(groups, CPU)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("explicit_max_length", [0, 12, 256])
@pytest.mark.parametrize("pair_cost", [0.0, float("inf")])
def test_logprobs_and_gradients_equal_plain_transformers(
    family: str,
    explicit_max_length: int,
    pair_cost: float,
    make_config: Callable[..., RunConfig],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the fused attention, the explicit one, and both in one batch; prompts where they stand,
    and copied."""
    from services.trainer.megatron import attention, mapping, sequences

    monkeypatch.setattr(attention, "PAIR_COST_CPU", pair_cost)
    monkeypatch.setattr(sequences, "EXPLICIT_MAX_LENGTH", explicit_max_length)
    config = make_config(family)
    policy = make_policy(config)
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    packed = whole_batch()
    factors = torch.randn(len(packed.targets_M))
    ours = policy.logprobs(packed)
    plain = plain_logprobs(model, packed, 0.7)
    torch.testing.assert_close(ours, plain, rtol=0, atol=4e-6)
    assert (ours - plain_logprobs(model, packed, 1.0)).abs().max() > 0.1
    policy.zero_gradients()
    (ours * factors).sum().backward()
    (plain * factors).sum().backward()
    model_parameters: Any = mapping.parameters(policy._model)
    gradients = {
        hf_name: gradient
        for name, parameter in model_parameters
        for rule in [mapping.rule_for(name, read_architecture(config.model.path))]
        for hf_name, gradient in zip(rule.names, rule.join([parameter.main_grad]), strict=True)
    }
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_export_gives_back_what_was_loaded(
    family: str, make_config: Callable[..., RunConfig], model_folders: dict[str, Path]
) -> None:
    loaded = load_tensors(model_folders[family], tied=family == "qwen2")
    exported = dict(make_policy(make_config(family)).export())
    assert exported.keys() == loaded.keys()
    assert all(torch.equal(exported[name], loaded[name]) for name in loaded)


def test_main_weights_keep_the_precision_of_the_folder(
    make_config: Callable[..., RunConfig], model_folders: dict[str, Path]
) -> None:
    policy = make_policy(make_config("llama", model={"dtype": "bfloat16"}))
    loaded = load_tensors(model_folders["llama"], tied=False)
    main = policy.state()["main.output_layer.weight"]
    assert torch.equal(main, loaded["lm_head.weight"])
    assert not torch.equal(main, main.bfloat16().float())


def test_weight_decay_spares_norms_and_biases(make_config: Callable[..., RunConfig]) -> None:
    policy = make_policy(make_config("qwen2", trainer={"weight_decay": 0.3}))
    groups = policy._optimizer.param_groups
    decay = {p.ndim: group["weight_decay"] for group in groups for p in group["params"]}
    assert decay == {1: 0.0, 2: 0.3}


def test_the_reference_stays_where_the_policy_began(make_config: Callable[..., RunConfig]) -> None:
    policy = make_policy(make_config("qwen2", algorithm={"kl_coefficient": 0.1}))
    packed = whole_batch()
    before = policy.reference_logprobs(packed)
    assert torch.equal(before, policy.logprobs(packed).detach())
    policy.zero_gradients()
    policy.logprobs(packed).sum().backward()
    policy.sum_gradients()
    policy.update(1e-2)
    assert torch.equal(policy.reference_logprobs(packed), before)
    assert (policy.logprobs(packed) - before).abs().max() > 1e-3
