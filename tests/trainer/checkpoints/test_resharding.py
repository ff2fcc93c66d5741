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
from services.trainer.checkpoints.tensor_file import Spec
from services.trainer.megatron.parameters.adapter_rules import is_adapter, trained_rules
from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.rules import Rules
from services.trainer.megatron.parameters.shards import held_names
from tests.trainer.models import FAMILIES
from trimaran.config import LoraSection
from trimaran.config.parallel import ParallelLayout, RankPlace
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


def parts_of(
    facts: ModelFacts, place: RankPlace, rules: Rules | None = None
) -> dict[str, torch.Tensor]:
    """The same with the distributed optimizer: of each flat parameter the rank's part, which may be
    empty. Dense ones are shared by the ranks of a stage with the same slice, experts by those that have
    them."""

    def owns(one: RankPlace, is_expert: bool) -> tuple[int, ...]:
        slices = (one.expert, one.expert_tensor) if is_expert else (one.tensor,)
        return one.pipeline, *slices

    everyone = [place.layout.place(rank) for rank in range(place.layout.num_ranks)]
    found: dict[str, torch.Tensor] = {}
    for name, tensor in shard(facts, place, rules=rules).items():
        is_expert = ".local_experts." in name
        others = [one for one in everyone if owns(one, is_expert) == owns(place, is_expert)]
        own, flat = others.index(place), tensor.flatten()
        start, stop = (len(flat) * number // len(others) for number in (own, own + 1))
        if start < stop:
            found[f"{name}@{start}"] = flat[start:stop]
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


def check(found: Resharded, wanted: Mapping[str, torch.Tensor]) -> None:
    assert {*found} == {*wanted} and wanted
    for name, tensor in wanted.items():
        assert found.specs[name].shape == tuple(tensor.shape), name
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize(("family", "old", "new"), [*CASES, *UNEVEN], ids=str)
def test_any_layout_reads_what_any_other_saved(
    facts: ModelFacts, old: ParallelLayout, new: ParallelLayout
) -> None:
    saved = [InMemory(shard(facts, place)) for place in old.senders]
    for place in new.senders:
        found = Resharded(facts, saved_with(old), place, saved.__getitem__)
        check(found, shard(facts, place))


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
        check(Resharded(facts, layout, place, saved.__getitem__), shard(facts, place))


@pytest.mark.parametrize("family", ["qwen2"])
def test_stages_that_alternate_are_read_from_and_by_those_that_do_not(facts: ModelFacts) -> None:
    facts = replace(facts, num_layers=4)
    layout = ParallelLayout(pipeline=2)
    for from_virtual, to_virtual in ((1, 2), (2, 1), (2, 2)):
        saved = [InMemory(shard(facts, place, from_virtual)) for place in layout.senders]
        old = saved_with(layout, virtual_stages=from_virtual)
        for place in layout.senders:
            found = Resharded(facts, old, place, saved.__getitem__, to_virtual)
            check(found, shard(facts, place, to_virtual))


LORA = LoraSection(rank=3)
PAIRS = [
    (ParallelLayout(), ParallelLayout(tensor=2)),
    (ParallelLayout(), ParallelLayout(pipeline=2)),
    (ParallelLayout(tensor=2, pipeline=2), ParallelLayout(data=2)),
    (ParallelLayout(tensor=2, data=2), ParallelLayout(pipeline=2)),
]


def adapters_of(facts: ModelFacts, place: RankPlace, cut: Cut) -> dict[str, torch.Tensor]:
    """Of all that the rank would save with `cut`, the adapters: they alone have trained."""
    saved = cut(facts, place, rules=trained_rules(facts, LORA))
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
        found = Resharded(facts, layout, place, saved.__getitem__, lora=LORA)
        check(found, adapters_of(facts, place, shard))


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
