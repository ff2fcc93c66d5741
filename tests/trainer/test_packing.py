from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.packing import plan_micro_batches

sizes = st.lists(st.integers(0, 60), max_size=24)


def test_example_of_the_docstring() -> None:
    assert plan_micro_batches([50, 70, 60, 40], 2, 100) == (((1,), (3,)), ((2,), (0,)))


def test_a_group_above_the_limit_gets_a_micro_batch_of_its_own() -> None:
    assert plan_micro_batches([10, 500, 20], 1, 100) == (((1,), (2, 0)),)


@given(sizes, st.integers(1, 5), st.integers(1, 100))
def test_every_group_with_tokens_stands_in_exactly_one_place(
    group_tokens: list[int], ranks: int, limit: int
) -> None:
    plan = plan_micro_batches(group_tokens, ranks, limit)
    assert len(plan) == ranks
    places = [place for rank in plan for micro_batch in rank for place in micro_batch]
    assert sorted(places) == [place for place, tokens in enumerate(group_tokens) if tokens]


@given(sizes, st.integers(1, 5), st.integers(1, 100))
def test_only_a_lone_group_exceeds_the_limit(
    group_tokens: list[int], ranks: int, limit: int
) -> None:
    for rank in plan_micro_batches(group_tokens, ranks, limit):
        for micro_batch in rank:
            total = sum(group_tokens[place] for place in micro_batch)
            assert micro_batch and (total <= limit or len(micro_batch) == 1)


@given(sizes, st.integers(1, 5))
def test_ranks_differ_by_at_most_the_largest_group(group_tokens: list[int], ranks: int) -> None:
    plan = plan_micro_batches(group_tokens, ranks, 100)
    loads = [sum(group_tokens[p] for micro in rank for p in micro) for rank in plan]
    assert max(loads) - min(loads) <= max(group_tokens, default=0)


@given(sizes, st.integers(1, 100))
def test_no_two_micro_batches_would_fit_into_one(group_tokens: list[int], limit: int) -> None:
    (rank,) = plan_micro_batches(group_tokens, 1, limit)
    totals = sorted(sum(group_tokens[place] for place in micro) for micro in rank)
    assert len(totals) < 2 or totals[0] + totals[1] > limit
