"""Parameters, against the counts that the models' makers publish and against hand-made sums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.trimaran.model.memory.models import (
    QWEN3_30B,
    QWEN3_235B,
    QWEN25_7B,
    QWEN25_32B,
    QWEN25_VL_7B,
)
from trimaran.config.parallel import ParallelLayout
from trimaran.model.folder import ModelFacts
from trimaran.model.memory.model import ModelSizes, dense_parameters, expert_parameters
from trimaran.model.memory.rank import RankChoices, rank_memory
from trimaran.model.memory.replica import replica_memory
from trimaran.model.memory.work import Work
from trimaran.model.vision_tower import VisionFacts

FACTS = ModelFacts("llama", 4, 8, 24, 4, 2, 2, 11, False, 64)
ATTENTION = 8 * (8 + 4 + 4) + 8 * 8  # q, k and v, then the output
MLP = 3 * 8 * 24


@pytest.mark.parametrize(
    ("model", "billions"),
    [
        *((QWEN25_7B, 7.61), (QWEN25_VL_7B, 8.29), (QWEN25_32B, 32.5)),
        *((QWEN3_30B, 30.5), (QWEN3_235B, 235)),
    ],
)
def test_public_models_have_as_many_parameters_as_their_makers_say(
    model: ModelSizes, billions: float
) -> None:
    assert model.matrices == pytest.approx(billions * 1e9, rel=0.01)


def test_tensor_ranks_share_matrices_and_a_padded_vocabulary() -> None:
    place = ParallelLayout(tensor=2).place(1)
    assert dense_parameters(ModelSizes(FACTS), place) == 4 * (ATTENTION + MLP) // 2 + 2 * 6 * 8


def test_the_first_stage_has_the_embedding_and_the_last_the_head() -> None:
    layout, stage = ParallelLayout(pipeline=4), ATTENTION + MLP
    counts = [dense_parameters(ModelSizes(FACTS), layout.place(rank)) for rank in range(4)]
    assert counts == [stage + 88, stage, stage, stage + 88]


def test_a_tied_head_is_there_once_with_one_stage_and_twice_with_several() -> None:
    model = ModelSizes(replace(FACTS, tied=True))
    one, last = ParallelLayout().place(0), ParallelLayout(pipeline=2).place(1)
    assert dense_parameters(model, one) == 4 * (ATTENTION + MLP) + 88 == model.matrices
    assert dense_parameters(model, last) == 2 * (ATTENTION + MLP) + 88


def test_experts_are_shared_among_expert_ranks_and_the_router_is_everywhere() -> None:
    model = ModelSizes(replace(FACTS, num_experts=8, experts_per_token=2, expert_size=6))
    place = ParallelLayout(tensor=2, data=4, expert=4).place(3)
    assert expert_parameters(model, place) == 4 * 8 * (3 * 8 * 6) // 4
    router = 8 * 8
    assert dense_parameters(model, place) == 4 * (ATTENTION // 2 + router) + 2 * 6 * 8


TOWER = VisionFacts(2, 4, 6, 2, 3, 2, 1, 2, image_token_id=5)
"""Gated: two blocks of 4 channels and an inner size of 6."""
PATCHES, BLOCK = 4 * 3 * 2 * 2, 2 * 4 + (12 + 4) * 5 + 2 * (6 * 5) + 4 * 7
MERGER = 4 + 16 * 17 + 8 * 17
SEEING = ModelSizes(replace(FACTS, family="qwen2_5_vl", vision=TOWER))


def test_a_vision_tower_is_whole_on_every_tensor_rank_of_the_first_stage() -> None:
    model, plain = SEEING, ModelSizes(FACTS)
    tower = PATCHES + 2 * BLOCK + MERGER
    assert model.tower == tower == model.matrices - plain.matrices
    places = [ParallelLayout(tensor=2, pipeline=2).place(rank) for rank in range(4)]
    added = [dense_parameters(model, place) - dense_parameters(plain, place) for place in places]
    assert added == [tower, tower, 0, 0]
    seen, blind = (
        [rank_memory(one, place, Work(6, 4, 2)).snapshot for place in places]
        for one in (model, plain)
    )
    assert [a - b for a, b in zip(seen, blind, strict=True)] == [2 * tower, 0, 0, 0]
    weights = [replica_memory(one, 2, 64, 1).weights for one in (model, plain)]
    assert weights[0] - weights[1] == 2 * tower


def test_a_frozen_tower_does_not_train_and_keeps_nothing() -> None:
    model, place = SEEING, ParallelLayout().place(0)
    work = Work(prompt=6, completion=4, group=2)
    trained = rank_memory(model, place, work)
    frozen = rank_memory(model, place, work, RankChoices(freeze=("visual.*",)))
    assert trained.trained - frozen.trained == 2 * model.tower
    # Of 12 packed tokens 6 may be of images, four patches each.
    patch = 2 * (2 * (11 * 4 + 4 * 6) + 3 * 4 + 3 * 1 * 2 * 2) + 4 * 5 * 4
    assert trained.layers_token - frozen.layers_token == 4 * patch * 6 / 12
    kept = RankChoices(freeze=("visual.*",), seen_groups=5)
    two = ParallelLayout(data=2).place(0)
    assert rank_memory(model, two, work, kept).features == 3 * work.prompt * 2 * FACTS.hidden_size
    deep = replace(model.facts, vision=replace(TOWER, num_deepstack=3))
    foreseen = rank_memory(ModelSizes(deep), two, work, kept).features
    assert foreseen == 4 * 3 * work.prompt * 2 * FACTS.hidden_size
    assert rank_memory(model, place, work, RankChoices(seen_groups=5)).features == 0
    blocks = rank_memory(model, place, work, RankChoices(freeze=("visual.blocks.*",)))
    assert blocks.trained - frozen.trained == 2 * (PATCHES + MERGER)
