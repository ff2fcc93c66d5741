"""One trainer rank, by hand: 2 layers of 8 channels, 4 heads of 2, 2 of them for keys, an MLP of 24."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.config.parallel import ParallelLayout
from trimaran.model.folder import ModelFacts
from trimaran.model.memory.head import Head
from trimaran.model.memory.layer import layer_bytes
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.rank import RankChoices, rank_memory
from trimaran.model.memory.work import Work

FACTS = ModelFacts("llama", 2, 8, 24, 4, 2, 2, 16, False, 64)
MODEL = ModelSizes(FACTS)
COUNT = 2 * (8 * 16 + 8 * 8 + 3 * 8 * 24) + 2 * 16 * 8
WORK = Work(prompt=4, completion=7, group=2, groups=4)  # groups of 4 + 2 x 6 packed tokens
ONE = ParallelLayout()


def test_work_counts_packed_tokens_rows_and_trained_tokens() -> None:
    assert (WORK.group_tokens, WORK.batch_tokens, WORK.sequence) == (16, 64, 10)
    assert (WORK.rows, WORK.trained) == (20 / 16, 14 / 16)


def test_a_micro_batch_holds_a_completion_and_twice_its_prompt_at_least() -> None:
    assert [WORK.tokens_of(limit) for limit in (1, 40, 1000)] == [10, 40, 64]
    assert Work(prompt=100, completion=11, group=8).tokens_of(1) == 180  # all of the group
    assert Work(prompt=100, completion=21, group=8).tokens_of(1) == 200


def test_bfloat16_takes_18_bytes_a_parameter_and_float32_16() -> None:
    half = rank_memory(MODEL, ONE.place(0), WORK)
    assert (half.weights, half.gradients) == (2 * COUNT, 4 * COUNT)
    assert (half.main_weights, half.moments, half.sure) == (4 * COUNT, 8 * COUNT, 18 * COUNT)
    whole = rank_memory(ModelSizes(FACTS, "float32"), ONE.place(0), WORK)
    assert (whole.weights, whole.main_weights, whole.sure) == (4 * COUNT, 0, 16 * COUNT)


def test_a_distributed_optimizer_is_shared_by_ranks_with_the_same_parameters() -> None:
    layout, choices = ParallelLayout(data=2, context=2), RankChoices(distributed_optimizer=True)
    rank = rank_memory(MODEL, layout.place(3), WORK, choices)
    assert (rank.weights, rank.gradients) == (2 * COUNT, 4 * COUNT)
    assert (rank.main_weights, rank.moments) == (COUNT, 2 * COUNT)
    model = ModelSizes(replace(FACTS, num_experts=4, experts_per_token=2, expert_size=6))
    spread = ParallelLayout(tensor=2, data=4, expert=4)
    alone, shared = (
        rank_memory(model, spread.place(0), WORK, one) for one in (RankChoices(), choices)
    )
    experts = 2 * (3 * 8 * 6)  # layers, the one expert of the rank, which two ranks hold
    dense = alone.moments // 8 - experts
    assert shared.moments == 8 * (dense // 4 + experts // 2)


def test_a_rank_that_takes_turns_leaves_all_but_gradients_on_the_host() -> None:
    kept = rank_memory(MODEL, ONE.place(0), WORK, RankChoices(reference=True))
    rank = rank_memory(MODEL, ONE.place(0), WORK, RankChoices(reference=True, takes_turns=True))
    assert (kept.away, rank.away) == (0, (2 + 12 + 2) * COUNT)
    assert rank.peak(64) == kept.peak(64), "in its own turn it has the device alone"


def test_long_sequences_keep_no_attention_weights() -> None:
    work = Work(prompt=200, completion=57, group=1)  # 256 tokens
    short = 2 * (8 + 2 * 4) + 4 * 256 * 6
    assert layer_bytes(MODEL, ONE, work).attention == pytest.approx(short)
    longer = layer_bytes(MODEL, ONE, replace(work, completion=58)).attention
    assert longer == pytest.approx(2 * 2 * (8 + 4) + 4 * 4)


def test_each_axis_of_an_accelerators_layout_brings_communicators() -> None:
    place = ParallelLayout(tensor=2, data=2).place(0)
    rank = rank_memory(MODEL, place, WORK)
    assert rank.communicators == 2 * 3 * (400 << 20)
    assert rank.peak(16) == rank.resident + rank.passing(16) + rank.communicators
    assert rank_memory(MODEL, place, WORK, RankChoices(on_host=True)).communicators == 0
    assert rank_memory(MODEL, ONE.place(0), WORK).communicators == 0


def test_logits_that_are_computed_again_do_not_grow_with_the_vocabulary() -> None:
    head = Head(size=2, hidden=4096, rows=1 << 17, trained=1.0)
    states = 4096 * 2 * 2
    assert head.logits(4096) == (1 << 30) + 4096 * states  # the last that are kept
    # From there on chunks of 8192 entries, and of 2^26 logits, in float32 twice.
    assert head.logits(4097) == (1 << 30) + 4097 * states  # as if they were kept
    assert head.logits(1 << 17) == (1 << 17) * 4096 * (2 + 2 * 4) + 2 * 4 * (1 << 26)


def test_the_snapshot_is_what_the_rank_sends() -> None:
    layout = ParallelLayout(tensor=2, data=2)
    snapshots = [rank_memory(MODEL, layout.place(rank), WORK).snapshot for rank in range(4)]
    assert snapshots == [COUNT, COUNT, 0, 0]
    model = ModelSizes(replace(FACTS, num_experts=4, experts_per_token=2, expert_size=6))
    spread = ParallelLayout(data=4, expert=2)
    first, second, third, _ = (rank_memory(model, spread.place(r), WORK).snapshot for r in range(4))
    experts = 2 * 2 * (3 * 8 * 6) * 2  # bytes, layers, one, two of them
    assert (second, third) == (experts, 0)
    assert first == second + 2 * (2 * (8 * 16 + 64 + 8 * 4) + 2 * 16 * 8)


@given(room=st.integers(0, 200_000), tensor=st.sampled_from([1, 2]), stages=st.sampled_from([1, 2]))
def test_the_largest_micro_batch_fits_and_one_token_more_does_not(room, tensor, stages) -> None:
    layout = ParallelLayout(tensor=tensor, pipeline=stages)
    rank = rank_memory(MODEL, layout.place(0), WORK)
    largest = rank.largest(room)
    assert largest == 0 or rank.peak(largest) <= room
    assert largest == WORK.batch_tokens or rank.peak(largest + 1) > room


def test_replayed_choices_stand_on_the_hosts_of_those_that_need_them() -> None:
    facts = replace(FACTS, num_experts=4, experts_per_token=2, expert_size=6)
    step, update = 8 * 16, 4 * 16  # packed tokens of 8 groups, and of the 4 of an update
    choices = RankChoices(replayed_groups=8)

    def of(layout: ParallelLayout, rank: int, choices=choices, experts: int = 4) -> int:
        model = ModelSizes(replace(facts, num_experts=experts))
        return rank_memory(model, layout.place(rank), WORK, choices).replayed

    assert of(ONE, 0, RankChoices()) == 0
    assert of(ONE, 0) == 2 * 2 * (step + update + step)  # those that came are kept by rank 0
    spread = ParallelLayout(data=2, pipeline=2)
    assert of(spread, 3) == 2 * 1 * (step // 2 + update)
    assert of(spread, 0) == of(spread, 3) + 2 * 2 * step
    # In a second epoch another rank may have a group.
    assert of(spread, 3, replace(choices, replayed_epochs=2)) == 2 * 1 * (step + update)
    assert of(spread, 3, experts=512) == 2 * of(spread, 3)
