"""Adapters of low rank, against W + alpha / rank B A merged by hand on plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from services.trainer.checkpoints.checkpoints import load_other
from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.megatron.parameters import lora
from tests.trainer.batches import random_batch
from tests.trainer.conftest import MakeConfig
from tests.trainer.models import TIED
from tests.trainer.plain_policy import plain_logprobs
from tests.trainer.processes import ANSWER_SECONDS, running_ranks
from tests.trainer.reference import ReferenceTrainer, with_rollout_logprobs
from tests.trainer.test_policy import add_up, make_policy, whole_batch
from tests.trainer.test_rank import save, started
from trimaran.config import LoraSection
from trimaran.errors import InputError
from trimaran.model.folder import read_model_folder
from trimaran.model.trainer_layout import check_trainer_layout

ALPHA, RANK = 6.0, 4
LORA = {"rank": RANK, "alpha": ALPHA}
SOME = {**LORA, "targets": ["q_proj", "v_proj", "down_proj"]}


class Adapted(torch.nn.Module):
    """A plain linear layer with an adapter, as the paper has it."""

    def __init__(self, linear: torch.nn.Linear, a: torch.Tensor, b: torch.Tensor) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a, self.b = torch.nn.Parameter(a.clone()), torch.nn.Parameter(b.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + ALPHA / RANK * ((x @ self.a.t()) @ self.b.t())


def adapted_model(folder: Path, adapters: dict[str, torch.Tensor]) -> Any:
    """Plain transformers with these adapters; they alone take gradients."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)
    for name in adapters:
        if name.endswith(".lora_A.weight"):
            place = name.removesuffix(".lora_A.weight")
            parent, _, last = place.rpartition(".")
            b = adapters[f"{place}.lora_B.weight"]
            owner = model.get_submodule(parent)
            setattr(owner, last, Adapted(getattr(owner, last), adapters[name], b))
    return model


def gradients_of(model: Any) -> dict[str, torch.Tensor]:
    return {
        name.replace(".a", ".lora_A.weight").replace(".b", ".lora_B.weight"): one.grad
        for name, one in model.named_parameters()
        if name.endswith((".a", ".b"))
    }


def stir(policy: Any) -> None:
    """B begins at zero, which would hide a mistake."""
    torch.manual_seed(3)
    for name, weight in policy._trained_weights():
        if name.endswith(".b"):
            weight.data.copy_(torch.randn_like(weight) * 0.2)


@pytest.mark.usefixtures("single_rank")
@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("qwen2", LORA),
        ("llama", SOME),
        ("qwen3", {**LORA, "targets": ["k_proj", "up_proj"]}),
        ("qwen2_moe", {**LORA, "targets": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    ],
)
@pytest.mark.parametrize("recompute", [False, True])
def test_logprobs_gradients_and_merged_weights_are_those_of_plain_adapters(
    family: str, lora: dict[str, Any], recompute: bool, make_config: MakeConfig
) -> None:
    config = make_config(family, trainer={"lora": lora, "recompute": recompute})
    policy = make_policy(config)
    stir(policy)
    adapters = dict(policy.export_adapters())
    model = adapted_model(config.model.path, adapters)
    packed = whole_batch()
    plain = plain_logprobs(model, packed, 0.7)
    ours = policy.forward([packed])[0].logprobs_M
    torch.testing.assert_close(ours, plain, rtol=0, atol=6e-6)
    policy.zero_gradients()
    policy.forward_backward([packed], add_up)
    plain.sum().backward()
    wanted = gradients_of(model)
    rules = policy._adapter_rules
    weights: Any = policy._trained_weights()
    found = {rules[name].names[0]: one.main_grad for name, one in weights}
    assert found.keys() == wanted.keys() == policy.adapter_shapes.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=2e-5, msg=name)
    loaded = load_tensors(config.model.path, tied=family in TIED)
    for name, tensor in policy.export():
        place, merged = name.removesuffix(".weight"), loaded[name]
        if (a := adapters.get(f"{place}.lora_A.weight")) is not None:
            merged = merged + ALPHA / RANK * adapters[f"{place}.lora_B.weight"] @ a
        torch.testing.assert_close(tensor, merged, rtol=0, atol=1e-6, msg=name)


@pytest.mark.usefixtures("single_rank")
def test_the_reference_is_the_model_without_adapters_and_the_start_is_the_folder(
    make_config: MakeConfig,
) -> None:
    algorithm = {"kl": {"coefficient": 0.1}}
    policy = make_policy(make_config("llama", trainer={"lora": LORA}, algorithm=algorithm))
    plain = make_policy(make_config("llama"))
    packed = whole_batch()
    before = plain.forward([packed])[0].logprobs_M
    assert not policy._reference
    for name, tensor in policy.export():
        assert torch.equal(tensor, dict(plain.export())[name]), name
    stir(policy)
    assert torch.equal(policy.forward_reference([packed])[0], before)
    assert (policy.forward([packed])[0].logprobs_M - before).abs().max() > 1e-2


@pytest.mark.usefixtures("single_rank")
def test_versions_that_are_not_merged_add_up_to_the_merged_model(make_config: MakeConfig) -> None:
    config = make_config("qwen2", trainer={"lora": {**SOME, "merged": False}})
    policy = make_policy(config)
    stir(policy)
    parts = {part.name: part for part in policy.parts()}
    assert parts.keys() == {tensor.name for tensor in policy.tensors}
    loaded = load_tensors(config.model.path, tied="qwen2" in TIED)
    num_adapted = 0
    for name, merged in policy.export():
        frozen, place = parts[name], name.removesuffix(".weight")
        assert frozen.is_frozen and torch.equal(frozen.tensor, loaded[name])
        found = frozen.tensor
        if a := parts.get(f"{place}.lora_A.weight"):
            b = parts[f"{place}.lora_B.weight"]
            assert not a.is_frozen and not b.is_frozen
            found, num_adapted = found + b.tensor @ a.tensor, num_adapted + 1
        torch.testing.assert_close(merged, found, rtol=0, atol=1e-6, msg=name)
    assert num_adapted * 2 == len(policy.adapter_shapes)


@pytest.mark.usefixtures("single_rank")
async def test_a_checkpoint_has_the_adapters_alone_and_is_read_with_no_others(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    async with started(make_config("qwen3", trainer={"lora": SOME}), tmp_path) as rank:
        assert all(".adapters." in name for name in rank._policy.state())
        await save(rank, 0)
    fewer = LoraSection(rank=RANK, alpha=ALPHA, targets=("q_proj",))
    with pytest.raises(InputError, match=r"only with the trainer\.lora that saved them"):
        load_other(tmp_path, rank._layout, rank._model, 0, fewer)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen2", {"tensor_parallel": 2, "sequence_parallel": True}),
        ("qwen3", {"tensor_parallel": 2, "pipeline_parallel": 2}),
        ("llama", {"tensor_parallel": 2}),
        ("qwen3", {"data_parallel": 2, "distributed_optimizer": True}),
        ("llama", {"context_parallel": 2}),
        ("qwen2_moe", {"data_parallel": 2, "expert_parallel": 2}),
        ("qwen2", {"pipeline_parallel": 2, "tensor_parallel": 2}),
        ("qwen2", {"pipeline_parallel": 2, "pipeline_layers": [0, 2]}),
    ],
)
async def test_ranks_train_export_and_publish_what_plain_adapters_become(
    family: str, sizes: dict[str, Any], make_config: MakeConfig, tmp_path: Path
) -> None:
    mlp = [] if "moe" in family else ["gate_proj", "down_proj"]
    lora = {**LORA, "targets": ["q_proj", "v_proj", "o_proj", *mlp], "merged": family != "qwen3"}
    trainer = {**sizes, "lora": lora, "micro_batch_tokens": 40, "learning_rate": 1e-2}
    config = make_config(family, trainer=trainer)
    async with running_ranks(config, tmp_path / "run") as client:
        await client.export_model("start", ANSWER_SECONDS)
        first = load_file(tmp_path / "run/start-adapter/adapter_model.safetensors")
        adapters = {name.removeprefix("base_model.model."): one for name, one in first.items()}
        model = adapted_model(config.model.path, adapters)
        reference = ReferenceTrainer(model, config)
        for step in range(1, 4):
            batch = with_rollout_logprobs(model, random_batch(step), 0.7)
            reference.check(await client.train(batch), batch, logprobs=6e-6)
        await client.export_model("model", ANSWER_SECONDS)
    plain = {name: one.detach() for name, one in model.named_parameters()}
    folder = tmp_path / "run" / "model-adapter"
    described = json.loads((folder / "adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (RANK, ALPHA)
    moved = 0.0
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        place = name.removeprefix("base_model.model.").removesuffix(".weight")
        place = place.replace(".lora_A", ".a").replace(".lora_B", ".b")
        assert (tensor - plain[place]).abs().max() < 5e-5, name
        moved = max(moved, tensor.abs().max().item())
    assert moved > 1e-2
    merged = load_tensors(tmp_path / "run" / "model", tied=family in TIED)
    place = "model.layers.1.self_attn.o_proj"
    wanted = plain[f"{place}.linear.weight"]
    wanted = wanted + ALPHA / RANK * plain[f"{place}.b"] @ plain[f"{place}.a"]
    assert (merged[f"{place}.weight"] - wanted).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "trainer", "words"),
    [
        ("qwen3_moe", {"lora": {}}, "which have no adapters here; leave out gate_proj, up_proj"),
        ("llama", {"lora": {}, "tensor_parallel": 4}, "q_proj, k_proj, v_proj cannot be split"),
    ],
)
def test_adapters_that_a_layout_or_a_model_cannot_have_are_refused(
    family: str, trainer: dict[str, Any], words: str, make_config: MakeConfig
) -> None:
    config = make_config(family, trainer=trainer)
    with pytest.raises(InputError, match=words):
        check_trainer_layout(read_model_folder(config.model.path), config.trainer)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"trainer": {"lora": {}, "freeze": ["*norm*"]}}, "freeze: with lora all of the model is"),
        ({"trainer": {"lora": {"targets": ["q_proj", "q_proj"]}}}, "targets: name each once"),
        (
            {"trainer": {"lora": {}}, "algorithm": {"kl": {"coefficient": 0.1, "offload": True}}},
            "kl.offload: with trainer.lora the reference is the model itself",
        ),
    ],
)
def test_what_contradicts_adapters_is_refused(
    sections: dict[str, Any], words: str, make_config: MakeConfig
) -> None:
    with pytest.raises(InputError, match=words):
        make_config("llama", **sections)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_has_the_same_bits_on_whatever_part_of_the_matrix_a_rank_has(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the merged weights of a run that goes on in another layout had another root."""
    torch.manual_seed(5)
    a, b = torch.randn(7, 46).to(dtype), torch.randn(31, 7).to(dtype)
    whole = lora.product(a, b)
    assert (whole.double() - b.double() @ a.double()).abs().max() < 1e-5
    monkeypatch.setattr(lora, "PART_ON_HOST", 100)
    assert torch.equal(lora.product(a, b), whole)
    for start, stop in ((0, 23), (23, 46), (5, 6)):
        assert torch.equal(lora.product(a[:, start:stop], b), whole[:, start:stop])
    for start, stop in ((0, 16), (16, 31), (30, 31)):
        assert torch.equal(lora.product(a, b[start:stop]), whole[start:stop])
