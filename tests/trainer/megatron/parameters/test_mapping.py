from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.megatron.architecture import read_architecture
from services.trainer.megatron.attention.rope import inverse_frequencies, parse_rope
from services.trainer.megatron.parameters.mapping import (
    check_names,
    load_weights,
    model_rules,
    tensor_specs,
)
from services.trainer.megatron.parameters.rules import Rules
from tests.extending.packages import install
from tests.trainer.models import LLAMA3, SHAPE
from trimaran.config.parallel import ParallelLayout
from trimaran.errors import InputError
from trimaran.model.families.family import Family


@pytest.fixture
def qwen(model_folders: dict[str, Path]) -> Rules:
    return model_rules(read_architecture(model_folders["qwen2"]))


def test_a_key_stays_with_the_queries_that_read_it(qwen: Rules) -> None:
    """4 query heads, 2 key/value heads of 8 channels: rank 1 has q2 q3, k1, v1."""
    rule = qwen["decoder.layers.0.self_attention.linear_qkv.bias"]
    queries = torch.arange(4).repeat_interleave(8)
    keys = 10 + torch.arange(2).repeat_interleave(8)
    values = 20 + torch.arange(2).repeat_interleave(8)
    shard = rule.shard([queries, keys, values], 1, 2)
    assert shard.tolist() == [2] * 8 + [3] * 8 + [11] * 8 + [21] * 8


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros(qwen: Rules) -> None:
    rule = qwen["embedding.word_embeddings.weight"]
    shard = rule.shard([torch.ones(97, 3)], 1, 2)
    assert shard.shape == (49, 3)
    assert shard[:48].eq(1).all() and shard[48].eq(0).all()


ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 3.0},
    "llama3": LLAMA3,
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "yarn with all keys": {
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "beta_fast": 20,
        "beta_slow": 2,
        "mscale": 0.7,
        "mscale_all_dim": 1.2,
        "truncate": False,
    },
    "yarn with a factor of its own": {
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "attention_factor": 1.5,
    },
}


@pytest.mark.parametrize("case", ROPES)
@pytest.mark.parametrize("head_dim", [8, 64])
def test_rope_frequencies_equal_those_of_transformers(case: str, head_dim: int) -> None:
    parameters = {"rope_type": case.split()[0], "rope_theta": 5e5, **ROPES[case]}
    config = transformers.LlamaConfig(
        **{**SHAPE, "max_position_embeddings": 2048, "head_dim": head_dim},
        rope_parameters=parameters,
    )
    rope = parse_rope(config.to_dict(), "here")
    plain = LlamaRotaryEmbedding(config)
    ours = inverse_frequencies(rope, head_dim)
    torch.testing.assert_close(ours, plain.inv_freq, rtol=1e-6, atol=0)
    assert rope.attention_factor == pytest.approx(plain.attention_scaling)
    tokens, positions = torch.zeros(1, 2048, 1), torch.arange(2048)[None]
    cos, _ = plain(tokens, positions)
    angles = positions[0, :, None] * ours
    expected = rope.attention_factor * torch.cat([angles, angles], -1).cos()
    torch.testing.assert_close(expected, cos[0], rtol=0, atol=5e-4)  # angles up to 2048


@pytest.mark.parametrize(
    ("scaling", "words"),
    [
        ({"type": "longrope"}, "here: rope type 'longrope' is not supported; use default, linear"),
        ({"rope_type": "linear"}, "here: rope type 'linear' without a number"),
        ({"rope_type": "yarn", "factor": "big"}, "here: rope type 'yarn' without a number"),
        ({"partial_rotary_factor": 0.5}, "here: partial_rotary_factor 0.5 is not supported"),
    ],
)
def test_a_rope_that_we_do_not_have_is_refused(scaling: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_rope({"max_position_embeddings": 8, "rope_scaling": scaling}, "here")


TOY = Family(biases=True)


def test_a_family_of_an_installed_package(
    model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(model_folders["qwen2"], tmp_path / "model")
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"qwen2"', '"toy"'))
    with pytest.raises(InputError, match="family 'toy'; supported are llama, qwen2"):
        read_architecture(folder)
    point = {"trimaran.model_families": {"toy": f"{__name__}:TOY"}}
    monkeypatch.syspath_prepend(install(tmp_path / "packages", point))
    like = read_architecture(model_folders["qwen2"])
    toy = read_architecture(folder)
    assert toy == replace(like, facts=replace(like.facts, family="toy"))
    assert tensor_specs(toy.facts, torch.float32) == tensor_specs(like.facts, torch.float32)


def test_a_tensor_that_the_family_does_not_have_is_named(model_folders: dict[str, Path]) -> None:
    architecture = read_architecture(model_folders["qwen2"])
    names = [name for name, _, _ in tensor_specs(architecture.facts, torch.float32)]
    check_names(
        [*names, "lm_head.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"], architecture
    )
    with pytest.raises(
        InputError, match=r"model\.path: model\.vision\.weight, and 1 more: no tensor"
    ):
        check_names(
            [*names, "model.vision.weight", "model.layers.2.mlp.up_proj.weight"], architecture
        )
    untied = replace(architecture, facts=replace(architecture.facts, tied=False))
    check_names([*names, "lm_head.weight"], untied)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.norm.weight": None}, "model.norm.weight: missing from the model's safetensors"),
        ({"model.norm.weight": torch.zeros(3)}, r"have \(3,\), need \(32,\)"),
    ],
)
def test_a_tensor_that_lacks_or_has_another_shape_is_named(
    change: dict[str, torch.Tensor | None], words: str, qwen: Rules, model_folders: dict[str, Path]
) -> None:
    loaded = {**load_tensors(model_folders["qwen2"], tied=True), **change}
    tensors = {name: tensor for name, tensor in loaded.items() if tensor is not None}
    named = [("decoder.final_layernorm.weight", torch.nn.Parameter(torch.zeros(32)))]
    with pytest.raises(InputError, match=words):
        load_weights(named, qwen, tensors, ParallelLayout().place(0))
