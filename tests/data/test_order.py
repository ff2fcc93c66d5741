import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.data.order import _permutation, place_at, turn_at

LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(length=st.integers(1, 40), epoch=st.integers(0, 3), seed=st.integers(0, 5))
def test_one_dataset_has_the_order_that_runs_have_always_had(
    length: int, epoch: int, seed: int
) -> None:
    """A run that an earlier version began is resumed with the same prompts."""
    order = list(range(length))
    random.Random(f"prompts:{seed}:{epoch}").shuffle(order)
    numbers = range(epoch * length, (epoch + 1) * length)
    assert [place_at(n, [length], [5], seed) for n in numbers] == [(0, row) for row in order]
    in_order = [place_at(n, [length], [1], seed, shuffle=False)[1] for n in numbers]
    assert in_order == list(range(length))


@given(data=st.data(), lengths=LENGTHS, seed=st.integers(0, 99), shuffle=st.booleans())
def test_a_mixture_keeps_its_shares_and_every_epoch_of_each_dataset(
    data: st.DataObject, lengths: list[int], seed: int, shuffle: bool
) -> None:
    size = len(lengths)
    shares = data.draw(st.lists(st.integers(1, 5), min_size=size, max_size=size))
    block = sum(shares)
    numbers = range(block * 12)
    places = [place_at(n, lengths, shares, seed, shuffle) for n in numbers]
    for start in range(0, len(places), block):
        counts = Counter(dataset for dataset, _ in places[start : start + block])
        assert [counts[dataset] for dataset in range(size)] == shares
    for dataset, length in enumerate(lengths):
        rows = [row for one, row in places if one == dataset]
        for start in range(0, len(rows) - length + 1, length):
            epoch = rows[start : start + length]
            assert sorted(epoch) == list(range(length))
            assert shuffle or epoch == list(range(length))
    number = data.draw(st.sampled_from(numbers))
    assert place_at(number, lengths, shares, seed, shuffle) == places[number]


@given(
    shares=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    number=st.integers(0, 300),
    seed=st.integers(0, 9),
)
def test_a_turn_counts_the_groups_of_the_same_dataset_before(
    shares: list[int], number: int, seed: int
) -> None:
    before = Counter(turn_at(n, shares, seed)[0] for n in range(number))
    dataset, turn = turn_at(number, shares, seed)
    assert turn == before[dataset]


def test_the_order_of_a_mixture_depends_on_the_seed_and_changes_with_each_block() -> None:
    def block(number: int, seed: int) -> list[int]:
        return [turn_at(number * 10 + n, [5, 5], seed)[0] for n in range(10)]

    assert len({tuple(block(number, 1)) for number in range(20)}) > 10
    assert block(0, 1) != block(0, 2)


@pytest.mark.e2e
def test_ten_million_rows_take_four_bytes_each() -> None:
    order = _permutation("prompts:1:0", 10_000_000)
    assert order.itemsize == 4
    assert len(order) == 10_000_000
