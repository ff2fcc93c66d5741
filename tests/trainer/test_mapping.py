from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from services.trainer.megatron.architecture import (
    Architecture,
    inverse_frequencies,
    read_architecture,
)
from services.trainer.megatron.mapping import rule_for
from services.trainer.model_files import load_tensors
from tests.extending.packages import install
from trimaran.errors import InputError
from trimaran.model_folder import Family

NAMES = [
    "embedding.word_embeddings.weight",
    "decoder.final_layernorm.weight",
    "decoder.layers.1.self_attention.linear_qkv.weight",
    "decoder.layers.1.self_attention.linear_qkv.bias",
    "decoder.layers.0.self_attention.linear_proj.weight",
    "decoder.layers.0.mlp.linear_fc1.weight",
    "decoder.layers.0.mlp.linear_fc2.weight",
    "decoder.layers.0.input_layernorm.weight",
    "decoder.layers.0.pre_mlp_layernorm.weight",
]


@pytest.fixture
def qwen(model_folders: dict[str, Path]) -> Architecture:
    return read_architecture(model_folders["qwen2"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [1, 2])
def test_shards_join_to_what_they_were_cut_from(
    name: str, size: int, qwen: Architecture, model_folders: dict[str, Path]
) -> None:
    loaded = load_tensors(model_folders["qwen2"], tied=True)
    rule = rule_for(name, qwen)
    whole = [loaded[hf_name] for hf_name in rule.names]
    shards = [rule.shard(whole, rank, size) for rank in range(size)]
    assert all(map(torch.equal, rule.join(shards[:1] if rule.replicated else shards), whole))


def test_a_key_stays_with_the_queries_that_read_it(qwen: Architecture) -> None:
    """4 query heads, 2 key/value heads of 8 channels: rank 1 has q2 q3, k1, v1."""
    rule = rule_for("decoder.layers.0.self_attention.linear_qkv.bias", qwen)
    queries = torch.arange(4).repeat_interleave(8)
    keys = 10 + torch.arange(2).repeat_interleave(8)
    values = 20 + torch.arange(2).repeat_interleave(8)
    shard = rule.shard([queries, keys, values], 1, 2)
    assert shard.tolist() == [2] * 8 + [3] * 8 + [11] * 8 + [21] * 8


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_knows_which_elements_it_has(rank: int, qwen: Architecture) -> None:
    """4 query heads and 2 key/value heads of 8 channels, 48 channels of the MLP, 97 tokens."""

    def places(name: str, *whole: torch.Tensor) -> list[tuple[int, int]]:
        rule = rule_for(name, qwen)
        shares = rule.shares(rule.shard(whole, rank, 2), rank, 2)
        for share, tensor, dim in zip(shares, whole, dims, strict=True):
            assert torch.equal(
                share.tensor, tensor.narrow(dim, share.start, share.stop - share.start)
            )
        return [(share.start, share.stop) for share in shares]

    def numbered(*shape: int) -> torch.Tensor:
        return torch.arange(torch.Size(shape).numel()).view(shape)

    dims = [0, 0, 0]
    layer = "decoder.layers.1"
    qkv = places(f"{layer}.self_attention.linear_qkv.bias", *map(numbered, (32, 16, 16)))
    assert qkv == [[(0, 16), (0, 8), (0, 8)], [(16, 32), (8, 16), (8, 16)]][rank]
    dims = [0, 0]
    gated = places(f"{layer}.mlp.linear_fc1.weight", numbered(48, 3), numbered(48, 3))
    assert gated == [[(0, 24)] * 2, [(24, 48)] * 2][rank]
    dims = [1]
    down = places(f"{layer}.mlp.linear_fc2.weight", numbered(3, 48))
    assert down == [[(0, 24)], [(24, 48)]][rank]
    dims = [0]
    embedding = places("embedding.word_embeddings.weight", numbered(97, 3))
    assert embedding == [[(0, 49)], [(49, 97)]][rank]  # its last row is padding
    assert places(f"{layer}.input_layernorm.weight", numbered(5)) == [(0, 5)]


def test_a_vocabulary_that_does_not_divide_is_padded_with_zeros(qwen: Architecture) -> None:
    rule = rule_for("embedding.word_embeddings.weight", qwen)
    shard = rule.shard([torch.ones(97, 3)], 1, 2)
    assert shard.shape == (49, 3)
    assert shard[:48].eq(1).all() and shard[48].eq(0).all()


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_rope_frequencies_equal_those_of_transformers(
    family: str, model_folders: dict[str, Path]
) -> None:
    config: Any = AutoConfig.from_pretrained(model_folders[family])
    architecture = read_architecture(model_folders[family])
    plain = LlamaRotaryEmbedding(config).inv_freq
    ours = inverse_frequencies(architecture.rope, architecture.facts.head_dim)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=0)


TOY = Family(qkv_bias=True)


def test_a_family_of_an_installed_package_that_differs_only_in_its_biases(
    model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in model_folders["qwen2"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"qwen2"', '"toy"'))
    with pytest.raises(InputError, match="family 'toy'; supported are llama, qwen2"):
        read_architecture(tmp_path)
    point = {"trimaran.model_families": {"toy": f"{__name__}:TOY"}}
    monkeypatch.syspath_prepend(install(tmp_path / "packages", point))
    like = read_architecture(model_folders["qwen2"])
    assert read_architecture(tmp_path) == replace(like, facts=replace(like.facts, family="toy"))


def test_another_rope_scaling_is_refused(model_folders: dict[str, Path], tmp_path: Path) -> None:
    for path in model_folders["llama"].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"llama3"', '"yarn"'))
    with pytest.raises(InputError, match="rope type 'yarn' is not supported"):
        read_architecture(tmp_path)
