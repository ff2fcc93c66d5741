"""Every layout's shards together hold each block once, and prove the same root."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from services.trainer.checkpoints.model_files import load_tensors
from services.trainer.exchange.shard import blocks_of, share_digests
from services.trainer.megatron.architecture import Architecture, read_architecture
from services.trainer.megatron.parameters.mapping import list_parts, model_rules, tensor_specs
from services.trainer.megatron.parameters.shards import held_names
from tests.trainer.models import FAMILIES, TIED
from trimaran.config.parallel import ParallelLayout, RankPlace
from trimaran.types import Manifest, TensorInfo
from weights.sending.snapshot import Snapshot, TensorPart, take_snapshot
from weights.version.grid import cut_tensors
from weights.version.layout import numbers_of, to_ranges

Tensors = dict[str, torch.Tensor]


def cut(architecture: Architecture) -> tuple[TensorInfo, ...]:
    return cut_tensors(tensor_specs(architecture.facts, torch.float32), architecture.facts)


def parts_of(architecture: Architecture, loaded: Tensors, place: RankPlace) -> list[TensorPart]:
    rules = model_rules(architecture)
    shards: list[torch.Tensor] = []
    """Of all tensor-parallel ranks, of the parameter at hand."""

    def named() -> Iterator[tuple[str, torch.Tensor]]:
        for name in held_names(rules, architecture.facts, place):
            whole = [loaded[hf_name] for hf_name in rules[name].names]
            number, size = rules[name].at(place)
            shards[:] = [rules[name].shard(whole, rank, size) for rank in range(size)]
            yield name, shards[number]

    return list(list_parts(named(), rules, place, lambda *_: torch.cat(shards)))


def snapshots(
    architecture: Architecture, loaded: Tensors, layout: ParallelLayout
) -> list[Snapshot]:
    """Of all ranks, with the digests that they would exchange."""
    tensors = cut(architecture)
    all_parts = [parts_of(architecture, loaded, place) for place in layout.senders]
    words: list[torch.Tensor] = []

    def collect(own: dict[int, str]) -> dict[int, str]:
        share_digests(own, num_blocks, lambda mine: words.append(mine) or mine)
        return dict.fromkeys(range(num_blocks), "00" * 16)

    def exchange(own: dict[int, str]) -> dict[int, str]:
        return share_digests(own, num_blocks, lambda mine: sum(words, torch.zeros_like(mine)))

    num_blocks = sum(tensor.num_blocks for tensor in tensors)
    for parts in all_parts:
        take_snapshot(tensors, parts, blocks_of(tensors, parts), collect)
    return [
        take_snapshot(tensors, parts, blocks_of(tensors, parts), exchange) for parts in all_parts
    ]


LAYOUTS = (
    ParallelLayout(),
    ParallelLayout(tensor=2),
    ParallelLayout(pipeline=2),
    ParallelLayout(tensor=2, pipeline=2, data=2),
    ParallelLayout(tensor=4, pipeline=2),
)
EXPERT_LAYOUTS = (
    ParallelLayout(data=2, expert=2),
    ParallelLayout(tensor=2, expert=2),
    ParallelLayout(tensor=2, data=2, expert=4),
    ParallelLayout(tensor=2, pipeline=2, data=4, expert=2),
    ParallelLayout(tensor=2, expert_tensor=2),
    ParallelLayout(tensor=2, data=2, expert=2, expert_tensor=2),
    ParallelLayout(tensor=4, expert=2, expert_tensor=2),
)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranks_of_every_layout_hold_each_block_once_and_have_the_same_manifest(
    family: str, model_folders: dict[str, Path]
) -> None:
    architecture = read_architecture(model_folders[family])
    loaded = load_tensors(model_folders[family], tied=family in TIED)
    manifests: list[Manifest] = []
    for layout in LAYOUTS + (EXPERT_LAYOUTS if architecture.facts.num_experts else ()):
        made = snapshots(architecture, loaded, layout)
        held = [number for one in made for number in numbers_of(one.layout.ranges)]
        assert sorted(held) == list(range(made[0].manifest.num_blocks)), layout
        assert len(made) == layout.num_shards
        manifests += [one.manifest for one in made]
    assert all(one == manifests[0] for one in manifests)
    first = next(iter(loaded))
    changed = {**loaded, first: loaded[first] + 1}
    [other, _] = snapshots(architecture, changed, ParallelLayout(tensor=2))
    assert other.manifest.root != manifests[0].root


def test_digests_pass_an_integer_sum_bit_for_bit() -> None:
    left, right = {0: "ff" * 16, 2: "80" * 16}, {1: "7f" + "00" * 15}
    words: list[torch.Tensor] = []
    for own in (left, right):
        share_digests(own, 3, lambda mine: words.append(mine) or mine)
    assert all(one.dtype == torch.int32 and one.shape == (3, 4) for one in words)
    assert share_digests(left, 3, lambda mine: words[0] + words[1]) == {**left, **right}
    assert to_ranges([*left, *right]) == ((0, 3),)
