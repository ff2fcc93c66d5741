"""A checkpoint of one layout, read as the shards of another: bit for bit what that layout would save."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from services.trainer.checkpoints.checkpoint import RankLayout
from services.trainer.checkpoints.resharding import Resharded
from services.trainer.checkpoints.saved import SavedTensors, specs_of
from services.trainer.checkpoints.shard_file import ShardFile, write_tensors
from services.trainer.checkpoints.tensor_file import Spec
from services.trainer.megatron.parameters.adapter_rules import is_adapter, trained_rules
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.rules import Rules
from services.trainer.megatron.parameters.shards import held_names, original
from tests.trainer.models import FAMILIES
from trimaran.config import LoraSection
from trimaran.config.parallel import ParallelLayout, RankPlace
from trimaran.errors import InputError
from trimaran.model.folder import ModelFacts, read_model_folder

Cut = Callable[..., dict[str, torch.Tensor]]
KINDS = ("main", "exp_avg", "exp_avg_sq")
DENSE = (
    ParallelLayout(),
    ParallelLayout(tensor=2),
    ParallelLayout(tensor=4),  # more ranks than key/value heads
    ParallelLayout(pipeline=2, data=2),
    ParallelLayout(tensor=2, pipeline=2),
)
SPARSE = (
    ParallelLayout(),
    ParallelLayout(data=4, expert=4),
    ParallelLayout(tensor=2, expert=2),
    ParallelLayout(tensor=2, data=2, expert=4, pipeline=2),
    ParallelLayout(tensor=2, data=2, expert=2, expert_tensor=2),
)
CASES = [
    (family, old, new)
    for family in FAMILIES
    for layouts in [SPARSE if family.endswith("moe") else DENSE]
    for place, old in enumerate(layouts)
    for new in (layouts if family in ("qwen2", "qwen3_moe") else [layouts[place - 1]])
]
"""Each layout to each of two families; of the others each to its neighbour, as their rules are the same."""
UNEVEN = [
    ("qwen2", ParallelLayout(pipeline=2, layers=(0, 2)), ParallelLayout(tensor=2, pipeline=2)),
    (
        "qwen3",
        ParallelLayout(pipeline=2, data=2),
        ParallelLayout(tensor=4, pipeline=2, layers=(2, 0)),
    ),
    (
        "qwen2",
        ParallelLayout(pipeline=2, layers=(0, 2)),
        ParallelLayout(pipeline=3, layers=(0, 2, 0)),
    ),
    ("qwen3_moe", SPARSE[3], ParallelLayout(pipeline=2, data=2, expert=2, layers=(0, 2))),
]


@pytest.fixture
def facts(family: str, model_folders: dict[str, Path]) -> ModelFacts:
    return read_model_folder(model_folders[family])


def whole_tensors(rules: Rules, kind: str) -> dict[str, torch.Tensor]:
    """Hugging Face tensors, each element different."""
    found: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    for rule in rules.values():
        for name, shape in zip(rule.names, rule.shapes, strict=True):
            if name not in found:
                found[name] = torch.randn(shape, generator=generator)
    return found


def shard(
    facts: ModelFacts, place: RankPlace, virtual_stages: int = 1, rules: Rules | None = None
) -> dict[str, torch.Tensor]:
    """As the rank at `place` saves it."""
    rules = rules or family_rules(facts)
    return {
        f"{kind}.{name}": rules[name].shard(
            [whole[hf_name] for hf_name in rules[name].names], *rules[name].at(place)
        )
        for kind in KINDS
        for whole in [whole_tensors(rules, kind)]
        for name in held_names(rules, facts, place, virtual_stages)
    }


def part_of(place: RankPlace) -> tuple[int, int]:
    """Of the experts."""
    return place.expert, place.expert_tensor


def parts_of(
    facts: ModelFacts, place: RankPlace, rules: Rules | None = None
) -> dict[str, torch.Tensor]:
    """The same with the distributed optimizer: of each flat parameter the rank's part, which may be
    empty. Dense ones are shared by the ranks of a stage with the same slice, experts by those that have
    them."""
    layout = place.layout
    stage = [
        one for one in map(layout.place, range(layout.num_ranks)) if one.pipeline == place.pipeline
    ]
    found: dict[str, torch.Tensor] = {}
    for name, tensor in shard(facts, place, rules=rules).items():
        is_expert = ".local_experts." in name
        others = [
            one
            for one in stage
            if (part_of(one) == part_of(place) if is_expert else one.tensor == place.tensor)
        ]
        own, flat = others.index(place), tensor.flatten()
        bounds = [len(flat) * number // len(others) for number in range(len(others) + 1)]
        if bounds[own] < bounds[own + 1]:
            found[f"{name}@{bounds[own]}"] = flat[bounds[own] : bounds[own + 1]]
    return found


def saved_with(ranks: ParallelLayout, **more: Any) -> RankLayout:
    return RankLayout(ranks, "float32", updates_per_batch=1, **more)


class InMemory(SavedTensors):
    """Which lists what was read of it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors, self.read = tensors, set[str]()

    @property
    def specs(self) -> Mapping[str, Spec]:
        return specs_of(self._tensors)

    def __getitem__(self, name: str) -> torch.Tensor:
        self.read.add(name)
        return self._tensors[name]


@pytest.mark.parametrize(("family", "old", "new"), [*CASES, *UNEVEN], ids=str)
def test_any_layout_reads_what_any_other_saved(
    facts: ModelFacts, old: ParallelLayout, new: ParallelLayout
) -> None:
    saved = [InMemory(shard(facts, place)) for place in old.senders]
    for place in new.senders:
        wanted = shard(facts, place)
        found = Resharded(facts, saved_with(old), place, saved.__getitem__)
        assert {*found} == {*wanted}
        for name, tensor in wanted.items():
            assert found.specs[name].shape == tuple(tensor.shape), name
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(
    ("family", "old", "new"),
    [
        ("qwen2", ParallelLayout(tensor=2, data=2), ParallelLayout(pipeline=2)),
        ("qwen3", ParallelLayout(pipeline=2, data=3), ParallelLayout(tensor=2)),
        ("qwen3_moe", ParallelLayout(data=4, expert=2), ParallelLayout()),
        (
            "qwen2_moe",
            ParallelLayout(tensor=2, data=2, expert=4),
            ParallelLayout(tensor=2, expert=2),
        ),
        (
            "qwen3_moe",
            ParallelLayout(tensor=2, data=4, expert=2, expert_tensor=2),
            ParallelLayout(data=2, expert=2),
        ),
    ],
    ids=str,
)
def test_parts_of_a_distributed_optimizer_are_read_as_whole_parameters(
    facts: ModelFacts, old: ParallelLayout, new: ParallelLayout
) -> None:
    places = [old.place(rank) for rank in range(old.num_ranks)]
    saved = [InMemory(parts_of(facts, place)) for place in places]
    layout = saved_with(old, distributed_optimizer=True)
    for place in new.senders:
        found = Resharded(facts, layout, place, saved.__getitem__)
        for name, tensor in shard(facts, place).items():
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("family", ["qwen2"])
def test_stages_that_alternate_are_read_from_and_by_those_that_do_not(facts: ModelFacts) -> None:
    facts = replace(facts, num_layers=4)
    layout = ParallelLayout(pipeline=2)
    for from_virtual, to_virtual in ((1, 2), (2, 1), (2, 2)):
        saved = [InMemory(shard(facts, place, from_virtual)) for place in layout.senders]
        old = saved_with(layout, virtual_stages=from_virtual)
        for place in layout.senders:
            wanted = shard(facts, place, to_virtual)
            found = Resharded(facts, old, place, saved.__getitem__, to_virtual)
            assert {*found} == {*wanted}
            assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())


LORA = LoraSection(rank=3)
PAIRS = [
    (ParallelLayout(), ParallelLayout(tensor=2)),
    (ParallelLayout(), ParallelLayout(pipeline=2)),
    (ParallelLayout(tensor=2, pipeline=2), ParallelLayout(data=2)),
    (ParallelLayout(tensor=2, data=2), ParallelLayout(pipeline=2)),
]


def adapters_of(
    facts: ModelFacts, place: RankPlace, cut: Cut, lora: LoraSection = LORA
) -> dict[str, torch.Tensor]:
    """Of all that the rank would save with `cut`, the adapters: they alone have trained."""
    saved = cut(facts, place, rules=trained_rules(facts, lora))
    return {name: tensor for name, tensor in saved.items() if is_adapter(name)}


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=str)
@pytest.mark.parametrize("is_split", [False, True])
def test_any_layout_reads_the_adapters_that_any_other_saved(
    facts: ModelFacts, old: ParallelLayout, new: ParallelLayout, is_split: bool
) -> None:
    places = [old.place(rank) for rank in range(old.num_ranks)] if is_split else old.senders
    cut = parts_of if is_split else shard
    saved = [InMemory(adapters_of(facts, place, cut)) for place in places]
    layout = saved_with(old, distributed_optimizer=is_split)
    for place in new.senders:
        wanted = adapters_of(facts, place, shard)
        found = Resharded(facts, layout, place, saved.__getitem__, lora=LORA)
        assert len({*found}) == len(wanted) > 0 and {*found} == {*wanted}
        for name, tensor in wanted.items():
            assert found.specs[name].shape == tuple(tensor.shape), name
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("family", ["llama"])
def test_a_rank_opens_and_reads_only_what_it_needs(facts: ModelFacts) -> None:
    """Of the 4 x 2 shards the second stage's, and of each the tensors in which it has rows."""
    old, place = ParallelLayout(tensor=4, pipeline=2), ParallelLayout(tensor=2, pipeline=2).place(3)
    saved = {one.shard: InMemory(shard(facts, one)) for one in old.senders}
    found = Resharded(facts, saved_with(old), place, saved.__getitem__)
    for name in found:
        assert found[name].isfinite().all()
    norm = "main.decoder.final_layernorm.weight"
    table = "main.output_layer.weight"
    assert [bool(one.read) for one in saved.values()] == [False] * 4 + [True, False, True, True]
    assert table not in saved[4].read and norm in saved[4].read
    assert table in saved[6].read and table in saved[7].read and norm not in saved[7].read


@pytest.mark.parametrize("family", ["qwen2"])
def test_a_damaged_tensor_is_found_by_the_ranks_that_need_it(
    facts: ModelFacts, tmp_path: Path
) -> None:
    old = ParallelLayout(tensor=2)
    paths = [tmp_path / f"shard-{place.shard}" for place in old.senders]
    digests = [
        write_tensors(path, shard(facts, place))
        for path, place in zip(paths, old.senders, strict=True)
    ]
    data = bytearray(paths[1].read_bytes())
    data[-1] ^= 1
    paths[1].write_bytes(data)

    def open_shard(number: int) -> ShardFile:
        return ShardFile(paths[number], digests[number], f"shard {number}", "remove step-00001")

    names = sorted(shard(facts, ParallelLayout().place(0)))
    found = Resharded(facts, saved_with(old), ParallelLayout().place(0), open_shard)
    assert all(found[name].isfinite().all() for name in names[:-1])
    with pytest.raises(InputError, match=rf"shard 1: is damaged, the digest of {names[-1]} is not"):
        found[names[-1]]


@pytest.mark.parametrize("family", ["qwen2"])
def test_a_tied_head_on_a_stage_of_its_own_is_the_embedding(facts: ModelFacts) -> None:
    rules = family_rules(facts)
    assert original("output_layer.weight", rules) == "embedding.word_embeddings.weight"
    untied = family_rules(replace(facts, tied=False))
    assert original("output_layer.weight", untied) == "output_layer.weight"
    assert "output_layer.weight" not in held_names(rules, facts, ParallelLayout().place(0))
    assert "output_layer.weight" in held_names(rules, facts, ParallelLayout(pipeline=2).place(1))
