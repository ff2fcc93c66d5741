"""Every layout's shards together hold each block once, and prove the same root."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from services.trainer.megatron.architecture import Architecture, read_architecture
from services.trainer.megatron.mapping import list_parts, rule_for
from services.trainer.megatron.tensors import tensor_shapes
from services.trainer.model_files import load_tensors
from services.trainer.shard import blocks_of, share_digests
from services.weight_sync.data.grid import cut_tensors
from services.weight_sync.data.layout import numbers_of, to_ranges
from services.weight_sync.data.snapshot import Part, Snapshot, take_snapshot
from trimaran.choices import DIGESTS
from trimaran.errors import InternalError
from trimaran.types import Manifest, TensorInfo

Tensors = dict[str, torch.Tensor]


def cut(architecture: Architecture) -> tuple[TensorInfo, ...]:
    return cut_tensors(
        ((name, "F32", shape) for name, shape in tensor_shapes(architecture)), architecture.facts
    )


def names_of_stage(architecture: Architecture, stage: int, stages: int) -> Iterator[str]:
    """Names of the parameters that a pipeline stage would hold, as the whole model numbers them."""
    layers = architecture.facts.num_layers // stages
    if stage == 0:
        yield "embedding.word_embeddings.weight"
    for layer in range(stage * layers, (stage + 1) * layers):
        for name in (
            "input_layernorm.weight",
            "pre_mlp_layernorm.weight",
            "self_attention.linear_qkv.weight",
            *(["self_attention.linear_qkv.bias"] if architecture.qkv_bias else []),
            "self_attention.linear_proj.weight",
            "mlp.linear_fc1.weight",
            "mlp.linear_fc2.weight",
        ):
            yield f"decoder.layers.{layer}.{name}"
    if stage == stages - 1:
        yield "decoder.final_layernorm.weight"
        if not architecture.facts.tied:
            yield "output_layer.weight"


def parts_of(
    architecture: Architecture, loaded: Tensors, rank: int, size: int, stage: int, stages: int
) -> list[Part]:
    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for name in names_of_stage(architecture, stage, stages):
            rule = rule_for(name, architecture)
            yield name, rule.shard([loaded[hf_name] for hf_name in rule.names], rank, size)

    return list(list_parts(named(), architecture, rank, size))


def snapshots(
    architecture: Architecture, loaded: Tensors, size: int, stages: int, digest: str = "xxh3-128"
) -> list[Snapshot]:
    """Of all ranks, with the digests that they would exchange."""
    tensors = cut(architecture)
    all_parts = [
        parts_of(architecture, loaded, rank, size, stage, stages)
        for stage in range(stages)
        for rank in range(size)
    ]
    words: list[torch.Tensor] = []

    def collect(own: dict[int, str]) -> dict[int, str]:
        share_digests(own, num_blocks, lambda mine: words.append(mine) or mine)
        return dict.fromkeys(range(num_blocks), "00" * 16)

    def exchange(own: dict[int, str]) -> dict[int, str]:
        return share_digests(own, num_blocks, lambda mine: sum(words, torch.zeros_like(mine)))

    num_blocks = sum(tensor.num_blocks for tensor in tensors)
    for parts in all_parts:
        take_snapshot(tensors, parts, blocks_of(tensors, parts), digest, collect)
    return [
        take_snapshot(tensors, parts, blocks_of(tensors, parts), digest, exchange)
        for parts in all_parts
    ]


@pytest.fixture(params=["qwen2", "llama"])
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def architecture(family: str, model_folders: dict[str, Path]) -> Architecture:
    return read_architecture(model_folders[family])


@pytest.fixture
def loaded(family: str, model_folders: dict[str, Path]) -> Tensors:
    return load_tensors(model_folders[family], tied=family == "qwen2")


def test_the_architecture_names_every_tensor_of_the_model(
    architecture: Architecture, loaded: Tensors
) -> None:
    assert dict(tensor_shapes(architecture)) == {n: tuple(t.shape) for n, t in loaded.items()}


@pytest.mark.parametrize(("size", "stages"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_the_ranks_together_hold_every_block_once(
    size: int, stages: int, architecture: Architecture, loaded: Tensors
) -> None:
    held = [
        number
        for snapshot in snapshots(architecture, loaded, size, stages)
        for number in numbers_of(snapshot.layout.ranges)
    ]
    num_blocks = sum(tensor.num_blocks for tensor in cut(architecture))
    assert sorted(held) == list(range(num_blocks))


@pytest.mark.parametrize("digest", DIGESTS.built_in)
def test_every_rank_of_every_layout_has_the_same_manifest(
    digest: str, architecture: Architecture, loaded: Tensors
) -> None:
    manifests: list[Manifest] = [
        snapshot.manifest
        for size, stages in ((1, 1), (2, 1), (1, 2), (2, 2))
        for snapshot in snapshots(architecture, loaded, size, stages, digest)
    ]
    assert len(manifests) == 1 + 2 + 2 + 4
    assert all(one == other for one, other in pairwise(manifests))
    first = next(iter(loaded))
    changed = {**loaded, first: loaded[first] + 1}
    assert snapshots(architecture, changed, 2, 1)[0].manifest.root != manifests[0].root


def test_a_part_that_cuts_a_block_is_named(architecture: Architecture) -> None:
    tensors = cut(architecture)
    with pytest.raises(InternalError, match=r"embed_tokens.weight: elements 0 to 5 are no union"):
        blocks_of(tensors, [Part("model.embed_tokens.weight", 0, 5, torch.zeros(5, 32))])


def test_digests_pass_an_integer_sum_bit_for_bit() -> None:
    left, right = {0: "ff" * 16, 2: "80" * 16}, {1: "7f" + "00" * 15}
    words: list[torch.Tensor] = []
    for own in (left, right):
        share_digests(own, 3, lambda mine: words.append(mine) or mine)
    assert all(one.dtype == torch.int32 and one.shape == (3, 4) for one in words)
    assert share_digests(left, 3, lambda mine: words[0] + words[1]) == {**left, **right}
    assert to_ranges([*left, *right]) == ((0, 3),)
