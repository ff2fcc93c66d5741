"""The start's probe: on a model of transformers in which tensors stay as they were, one by one, and
on a real vLLM engine in which layers go on computing with older weights."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from typing import Any

import pytest
import torch
import transformers

from services.rollout.vllm.loading.synthetic import (
    GAUGES,
    KINDS,
    SyntheticVersion,
    gauges_of,
    kind_of,
    read_shapes,
    synthetic_tensors,
)
from services.rollout.vllm.probe import (
    NEW_TOKENS,
    NUM_LIKELIEST,
    Likeliest,
    Probe,
    distance,
    effect,
    spread_prompt,
    stale_kinds,
)
from tests.rollout.programs import run_program
from tests.tiny_model import SHAPE, write_tiny_model
from trimaran.errors import InputError
from trimaran.wire import health_note

LATENT = {
    **{"q_lora_rank": 48, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16},
    **{"v_head_dim": 32, "num_key_value_heads": 4},
}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "deepseek_v3": {"tie_word_embeddings": True, "first_k_dense_replace": 3, **LATENT},
    "qwen3": {"tie_word_embeddings": True, "head_dim": 32},
}

UNSEEN = {"deepseek_v3": frozenset({"model.layers.1.self_attn.o_proj.weight"})}
"""By family, what is not found where vLLM's dummy stays: beside keys, latent values have no factor of their own that would
make it stand out."""


class Model:
    """Of transformers. `stale` are tensors that keep what they hold."""

    def __init__(self, family: str):
        shape: Any = {**SHAPE, "num_hidden_layers": 3, **FAMILIES[family]}
        config = transformers.AutoConfig.for_model(family, **shape)
        self.model: Any = transformers.AutoModelForCausalLM.from_config(config).eval()
        self.shapes = {name: tuple(p.shape) for name, p in self.model.named_parameters()}
        self.stale: set[str] = set()
        self.unseen = UNSEEN.get(family, frozenset())
        self.noise = 0.0
        self.num_loads = 0
        self.said: list[str] = []

    async def load(self, version: SyntheticVersion) -> None:
        self.num_loads += 1
        self.said.append(health_note.own.doing)
        with torch.no_grad():
            for name, tensor in synthetic_tensors(version.description()):
                if name not in self.stale:
                    self.model.get_parameter(name).copy_(tensor)

    def load_dummies(self) -> None:
        """Weights as vLLM's own before the first version."""
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.uniform_(-1e-3, 1e-3)

    @torch.no_grad()
    async def answer(self) -> list[Likeliest]:
        tokens, found = list(spread_prompt(SHAPE["vocab_size"], 64)), []
        for _ in range(NEW_TOKENS):
            logits_V = self.model(torch.tensor([tokens])).logits[0, -1]
            logits_V = logits_V + self.noise * torch.randn_like(logits_V)
            values, best = logits_V.log_softmax(-1).topk(NUM_LIKELIEST)
            logprobs = dict(zip(best.tolist(), values.tolist(), strict=True))
            tokens.append(int(best[0]))
            found.append(Likeliest(tokens[-1], logprobs))
        return found

    def probe(self) -> str:
        plain = SyntheticVersion(self.shapes, "float32", {})
        try:
            asyncio.run(Probe(self.load, self.answer, plain, "the remedy").run())
        except InputError as error:
            return str(error)
        return ""


@pytest.fixture(params=FAMILIES)
def model(request) -> Model:
    return Model(request.param)


def test_a_model_that_loads_passes_after_few_loads(model):
    assert model.probe() == ""
    count = model.num_loads
    assert count == (6 if any("q_norm" in name for name in model.shapes) else 5)
    assert model.said == [
        f"probes its engine: {number} of {count} synthetic versions"
        for number in range(1, count + 1)
    ]


async def test_each_gauge_alone_changes_tensors_and_not_the_function(model):
    async def answer(gauges):
        await model.load(SyntheticVersion(model.shapes, "float32", gauges))
        return await model.answer()

    plain = await answer({})
    assert max(plain[0].logprobs.values()) - min(plain[0].logprobs.values()) > 1
    for gauge in gauges_of(model.shapes):
        for sign in (1, -1):
            assert distance(plain, await answer({gauge: sign})) < 1e-3, gauge


@pytest.mark.e2e  # many models, not whole runs
@pytest.mark.parametrize("since", ["a version", "the start"])
def test_one_stale_tensor_is_found(model, since):
    names = [name for name in model.shapes if ".layers." not in name or ".layers.1." in name]
    assert len(names) > 10
    for name in names:
        model.stale = set()
        if since == "a version":
            assert model.probe() == ""
        else:
            model.load_dummies()
        model.stale = {name}
        said = model.probe()
        if since == "the start" and name in model.unseen:
            assert said == "", name
            continue
        assert "does not compute with the weights that it has loaded" in said, name
        assert said.endswith("; the remedy"), name
        if since == "a version":
            assert kind_of(name) in said or "change nothing" in said, (name, said)


@pytest.mark.parametrize("block", ["self_attn", "mlp", "q_norm|k_norm"])
def test_a_kind_of_block_that_keeps_its_dummies_is_found(model, block):
    """As a packed copy of one type of layer would: such a block adds nothing, under any weights."""
    model.load_dummies()
    model.stale = {name for name in model.shapes if re.search(block, name)}
    if model.stale:
        assert "change nothing" in model.probe()


@pytest.mark.parametrize("since", ["a version", "the start"])
def test_a_model_in_which_nothing_changes_is_refused(model, since):
    if since == "the start":
        model.load_dummies()
    model.stale = set(model.shapes)
    assert "change nothing" in model.probe()


def test_noise_of_the_device_is_allowed_for():
    torch.manual_seed(0)
    model = Model("llama")
    model.noise = 0.04
    for _ in range(5):
        assert model.probe() == ""
    model.stale = {"model.layers.1.self_attn.o_proj.weight"}
    assert "o_proj.weight" in model.probe()


def test_an_answer_that_is_no_number_is_no_noise():
    model = Model("llama")
    right = model.answer

    async def answer():
        found = await right()
        return found if model.num_loads < 5 else [Likeliest(0, {0: math.nan})] * len(found)

    model.answer = answer
    assert "does not compute with the weights" in model.probe()


def test_a_tensor_of_an_unknown_kind_is_named_in_a_warning(caplog):
    model = Model("llama")
    model.shapes["model.layers.0.self_attn.sinks"] = (4,)
    with caplog.at_level(logging.WARNING):
        assert model.probe() == ""
    assert "model.layers.0.self_attn.sinks" in caplog.text
    assert not model.num_loads


def test_the_kinds_that_explain_what_failed():
    assert stale_kinds({"values", "residual stream"}, KINDS) == ["o_proj.weight"]
    assert stale_kinds({"mlp's norm", "mlp's channels"}, KINDS) == ["up_proj.weight"]
    assert stale_kinds({"values"}, KINDS - {"v_proj.bias"}) == ["o_proj.weight", "v_proj.weight"]
    several = stale_kinds({"values", "mlp's channels"}, KINDS)
    assert several == sorted([*GAUGES["values"], *GAUGES["mlp's channels"]])
    assert stale_kinds(set(), KINDS) == sorted(KINDS)


def test_the_distance_counts_tokens_that_are_missing_on_one_side():
    one = [Likeliest(1, {1: -0.1, 2: -2.0})]
    assert distance(one, one) == 0
    assert distance(one, [Likeliest(1, {1: -0.1, 3: -1.0})]) == pytest.approx(1.0)
    assert distance(one, [Likeliest(1, {1: math.nan, 2: -2.0})]) == math.inf
    # Behind another token nothing can be compared.
    further = Likeliest(5, {5: -1.0, 6: -1.5})
    assert distance([*one, further], [Likeliest(2, {1: -0.2, 2: -1.9}), *one]) == pytest.approx(0.1)


def test_only_the_files_that_the_index_names_are_read(tmp_path):
    import safetensors.torch

    safetensors.torch.save_file({"norm.weight": torch.zeros(2)}, tmp_path / "model-1.safetensors")
    safetensors.torch.save_file({"other": torch.zeros(2)}, tmp_path / "consolidated.safetensors")
    index = {"weight_map": {"norm.weight": "model-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_shapes(tmp_path) == {"norm.weight": (2,)}


def test_an_output_layer_that_is_the_embedding_hides_no_stale_embedding():
    """Each token gets the log-probability of the next one when hidden states stay as they were."""
    one, shifted = Likeliest(1, {1: -0.1, 2: -2.0}), Likeliest(0, {0: -0.1, 1: -2.0})
    assert effect([one], [shifted]) == 0
    assert effect([one], [Likeliest(1, {1: -0.4, 2: -2.0})]) == pytest.approx(0.3)


@pytest.fixture(scope="module")
def said(tmp_path_factory) -> dict[str, str]:
    """By what was stale in a real engine; see `tests/rollout/probed.py`."""
    folder = write_tiny_model(tmp_path_factory.mktemp("model"), "qwen2", True, "bfloat16")
    return run_program("probed", folder)


@pytest.mark.e2e
def test_whatever_is_stale_in_vllm_is_found(said):
    assert said["nothing"] == said["nothing again"] == ""
    broken = {name: text for name, text in said.items() if " since " in name}
    # Each since two times. An output layer that is not packed cannot be stale alone.
    assert len(broken) == (14 if "head since the start" in said else 12)
    for name, text in broken.items():
        assert text.startswith("vllm does not compute with the weights"), name
        assert text.endswith("report it, and use another version of vllm"), name
    stale = {"self_attn.qkv_proj": "v_proj", "mlp.gate_up_proj": "up_proj"}
    for name in ("self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"):
        kind = stale.get(name, name.partition(".")[2])
        assert f"{kind}.weight" in said[f"{name} since a version"]
