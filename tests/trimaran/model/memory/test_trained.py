"""What trains where names are frozen: by hand, and all of it without a pattern."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trimaran.model.memory.models import QWEN3_30B, QWEN25_VL_7B
from trimaran.config.parallel import ParallelLayout
from trimaran.model.folder import ModelFacts
from trimaran.model.memory.model import ModelSizes, dense_parameters, expert_parameters
from trimaran.model.memory.rank import RankChoices, rank_memory
from trimaran.model.memory.trained import trained_parameters
from trimaran.model.memory.work import Work

FACTS = ModelFacts("llama", 2, 8, 24, 4, 2, 2, 16, False, 64)
MODEL = ModelSizes(FACTS)
ATTENTION, MLP, TABLE = 8 * 16 + 8 * 8, 3 * 8 * 24, 16 * 8
WORK = Work(prompt=4, completion=7, group=2, groups=4)
NOTHING = ("nothing",)


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        (QWEN25_VL_7B, ParallelLayout(4, 2, layers=(0, 28))),
        (QWEN3_30B, ParallelLayout(4, 2, 4, expert=4)),
    ],
)
def test_without_a_match_all_of_a_rank_trains(model: ModelSizes, layout: ParallelLayout) -> None:
    for rank in (0, layout.num_ranks - 1):
        place = layout.place(rank)
        everything = dense_parameters(model, place) + expert_parameters(model, place)
        assert sum(trained_parameters(model, place, NOTHING)) == everything


def test_ranks_share_what_trains() -> None:
    layout, freeze = ParallelLayout(tensor=2, pipeline=2), ("*.mlp.*", "model.layers.1.*")
    first, last = (trained_parameters(MODEL, layout.place(rank), freeze).dense for rank in (0, 2))
    assert (first, last) == (ATTENTION // 2 + TABLE // 2, TABLE // 2)


def test_a_tied_table_counts_once_and_its_head_goes_by_the_embedding() -> None:
    tied = ModelSizes(replace(FACTS, tied=True))
    both = 2 * (ATTENTION + MLP)
    place = ParallelLayout().place(0)
    assert trained_parameters(tied, place, NOTHING) == (both + TABLE, 0)
    freeze = ("model.embed_tokens.weight",)
    assert trained_parameters(tied, place, freeze) == (both, 0)
    assert rank_memory(tied, place, WORK, RankChoices(freeze=freeze)).head == 2 * 4 * 128 * 16


def test_a_frozen_router_and_frozen_experts() -> None:
    model = ModelSizes(replace(FACTS, num_experts=4, experts_per_token=2, expert_size=6))
    place = ParallelLayout(data=2, expert=2).place(0)
    experts, router = 2 * 4 * (3 * 8 * 6), 2 * 8 * 4
    dense = 2 * ATTENTION + 2 * TABLE
    assert trained_parameters(model, place, ("*.mlp.gate.weight",)) == (dense, experts // 2)
    assert trained_parameters(model, place, ("*.experts.*",)) == (dense + router, 0)


def test_stages_that_alternate_have_other_layers() -> None:
    model = ModelSizes(replace(FACTS, num_layers=4))
    freeze = ("model.layers.0.*", "model.layers.1.*")
    places = [ParallelLayout(pipeline=2).place(rank) for rank in range(2)]
    of_layer = ATTENTION + MLP
    plain = [trained_parameters(model, place, freeze).dense for place in places]
    assert plain == [TABLE, 2 * of_layer + TABLE]
    alternating = [trained_parameters(model, place, freeze, 2).dense for place in places]
    assert alternating == [of_layer + TABLE, of_layer + TABLE]


def test_ranks_with_the_same_experts_share_their_optimizer_and_no_others() -> None:
    model = ModelSizes(replace(FACTS, num_experts=4, experts_per_token=2, expert_size=6))
    place = ParallelLayout(data=4, expert=2).place(0)
    choices = RankChoices(distributed_optimizer=True)
    experts, dense = 2 * 4 * (3 * 8 * 6), 2 * ATTENTION + 2 * TABLE + 2 * 8 * 4
    both = rank_memory(model, place, WORK, choices)
    assert both.main_weights == 4 * (dense // 4 + experts // 2 // 2)
    alone = rank_memory(model, place, WORK, replace(choices, freeze=("*.experts.*",)))
    assert alone.main_weights == 4 * (dense // 4)
