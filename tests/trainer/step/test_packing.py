from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.step.packing import (
    GroupLengths,
    GroupPiece,
    PackingPlan,
    join,
    plan_micro_batches,
)

lengths = st.builds(
    GroupLengths,
    st.integers(1, 30),
    st.lists(st.integers(0, 60), max_size=6).map(tuple),
)
batches = st.lists(lengths, max_size=16)


def pieces_of(plan: PackingPlan) -> list[GroupPiece]:
    return [piece for rank in plan.micro_batches for micro in rank for piece in micro]


def tokens_of(groups: list[GroupLengths], micro: tuple[GroupPiece, ...]) -> int:
    return sum(groups[piece.place].only(piece.completions).num_tokens for piece in micro)


def test_small_groups_stay_whole_and_are_balanced() -> None:
    groups = [GroupLengths(10, (20, 20)), GroupLengths(10, (30, 1)), GroupLengths(10, (5, 3))]
    plan = plan_micro_batches(groups, 2, 100)
    assert plan.micro_batches == (
        ((GroupPiece(1, (0, 1)), GroupPiece(2, (0, 1))),),
        ((GroupPiece(0, (0, 1)),),),
    )
    assert plan.costs == (59, 50) and plan.imbalance == 59 / 54.5


def test_a_group_above_the_limit_is_cut_and_each_piece_has_the_prompt() -> None:
    plan = plan_micro_batches([GroupLengths(10, (30, 50, 40, 20))], 1, 90)
    assert plan.micro_batches == (((GroupPiece(0, (1, 3)),), (GroupPiece(0, (0, 2)),)),)


def test_a_completion_above_the_limit_is_alone() -> None:
    plan = plan_micro_batches([GroupLengths(10, (500, 5)), GroupLengths(1, (9,))], 1, 100)
    (rank,) = plan.micro_batches
    assert rank[0] == (GroupPiece(0, (0,)),)
    assert sorted(piece for micro in rank[1:] for piece in micro) == [
        GroupPiece(0, (1,)),
        GroupPiece(1, (0,)),
    ]


def test_one_group_is_shared_by_all_ranks() -> None:
    """Else three of them would have nothing to do."""
    plan = plan_micro_batches([GroupLengths(50, (100,) * 16)], 4, 4096)
    assert [len(piece.completions) for piece in pieces_of(plan)] == [4] * 4
    assert plan.imbalance == 1.0


def test_the_cost_of_attention_is_counted_by_hand() -> None:
    group = GroupLengths(4, (2, 6))
    # The prompt attends over half of itself, a completion over the prompt and half of itself.
    assert group.cost(0.5) == 12 + 0.5 * (4 * 2 + 2 * (4 + 1) + 6 * (4 + 3))
    # One more completion brings its own pairs, and no further prompt.
    more = GroupLengths(4, (2, 6, 2))
    assert more.cost(0.5) - group.cost(0.5) == 2 + 0.5 * 2 * (4 + 1)
    assert GroupLengths(4, ()).cost(0.5) == 0


@given(batches, st.integers(1, 5), st.integers(1, 150), st.sampled_from([0.0, 0.01]))
def test_every_completion_stands_in_exactly_one_place(
    groups: list[GroupLengths], ranks: int, limit: int, attention: float
) -> None:
    plan = plan_micro_batches(groups, ranks, limit, attention)
    assert len(plan.micro_batches) == ranks
    assert len({len(rank) for rank in plan.micro_batches}) == 1  # as many for each rank
    found = [(piece.place, index) for piece in pieces_of(plan) for index in piece.completions]
    assert sorted(found) == [
        (place, index)
        for place, group in enumerate(groups)
        for index in range(len(group.completions))
    ]
    assert all(piece.completions for piece in pieces_of(plan))


@given(batches, st.integers(1, 5), st.integers(1, 150))
def test_only_a_lone_completion_or_a_long_prompt_exceeds_the_limit(
    groups: list[GroupLengths], ranks: int, limit: int
) -> None:
    for rank in plan_micro_batches(groups, ranks, limit).micro_batches:
        for micro in rank:
            tokens = tokens_of(groups, micro)
            if tokens > limit:
                (piece,) = micro
                is_lone = len(piece.completions) == 1
                assert is_lone or tokens <= 2 * groups[piece.place].prompt


@given(st.lists(st.integers(0, 60), max_size=16), st.integers(1, 100))
def test_neighbours_are_joined_in_order_up_to_the_limit(tokens: list[int], limit: int) -> None:
    joined = list(join(tokens, limit))
    assert [index for one in joined for index in one] == list(range(len(tokens)))
    for one in joined:
        assert one and (len(one) == 1 or sum(tokens[index] for index in one) <= limit)


def test_the_batches_of_users_are_balanced_in_little_time() -> None:
    """64 prompts of 16 answers of up to 8,192 tokens, in micro-batches of 16,384; and 512 of them."""
    dice = random.Random(1)

    def group() -> GroupLengths:
        return GroupLengths(512, tuple(dice.randint(500, 8192) for _ in range(16)))

    for num_groups, ranks, imbalance, copies in (
        (64, 8, 1.005, 1.035),
        (512, 64, 1.015, 1.035),
        (2, 8, 1.02, 1.05),  # so few are cut finer
    ):
        groups = [group() for _ in range(num_groups)]
        begin = time.perf_counter()
        plan = plan_micro_batches(groups, ranks, 16_384, 1e-4)
        assert time.perf_counter() - begin < 20  # 0.04 s; where all bins were searched, minutes
        assert plan.imbalance < imbalance
        tokens = [tokens_of(groups, micro) for rank in plan.micro_batches for micro in rank]
        assert max(tokens) <= 16_384
        assert sum(tokens) < copies * sum(one.num_tokens for one in groups)
        # Of two groups for eight ranks, no other completion would fit into most of them.
        assert num_groups == 2 or sum(tokens) / len(tokens) > 0.8 * 16_384


def test_images_count_in_the_balance_and_again_in_each_piece() -> None:
    seen, plain = GroupLengths(10, (10, 10), images=60.0), GroupLengths(10, (10, 10))
    assert seen.cost(0.0) == 90.0
    assert seen.only([0]).cost(0.0) == 80.0
    assert GroupLengths(10, (), images=60.0).cost(0.0) == 0.0
    plan = plan_micro_batches([seen, plain, plain, plain], 2, micro_batch_tokens=200)
    assert plan.costs == (90.0, 90.0)
    assert [{piece.place for piece in rank[0]} for rank in plan.micro_batches] == [{0}, {1, 2, 3}]
