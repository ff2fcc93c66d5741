"""Which row of which dataset a group's number stands for. Pure: a run that is resumed, on whatever host,
meets the same prompts."""

from __future__ import annotations

import random
import threading
from array import array
from collections.abc import Sequence
from functools import lru_cache

from trimaran.config import MAX_DATASETS

_drawing = threading.Lock()
"""Threads that want the same permutation wait for one of them, instead of each drawing it."""


def place_at(
    number: int, lengths: Sequence[int], shares: Sequence[int], seed: int, shuffle: bool = True
) -> tuple[int, int]:
    """(dataset, row) of group `number`.

    Of each sum(shares) numbers in a row, beginning with a multiple of it, dataset d has shares[d], in an
    order drawn again each time. A dataset's own groups go through its rows epoch by epoch: each epoch
    meets every row once, shuffled again or in the order of the file.

    Example: place_at(17, [len(rows)], [1], seed=1) == (0, 4)  # somewhere in epoch 17 // len(rows)
    """
    dataset, turn = turn_at(number, shares, seed)
    epoch, place = divmod(turn, lengths[dataset])
    if not shuffle:
        return dataset, place
    # The first one's name is that of a dataset alone, before datasets could be mixed.
    name = f"prompts:{seed}:{epoch}" + (f":{dataset}" if dataset else "")
    with _drawing:
        return dataset, _permutation(name, lengths[dataset])[place]


def turn_at(number: int, shares: Sequence[int], seed: int) -> tuple[int, int]:
    """(dataset, how many groups before `number` were of that dataset)."""
    if len(shares) == 1:
        return 0, number
    block, place = divmod(number, sum(shares))
    with _drawing:
        order = _block(f"mixture:{seed}:{block}", tuple(shares))
    dataset = order[place]
    return dataset, block * shares[dataset] + order[:place].count(dataset)


@lru_cache(maxsize=64)
def _block(name: str, shares: tuple[int, ...]) -> tuple[int, ...]:
    order = [dataset for dataset, share in enumerate(shares) for _ in range(share)]
    random.Random(name).shuffle(order)
    return tuple(order)


@lru_cache(maxsize=2 * MAX_DATASETS)
def _permutation(name: str, length: int) -> array[int]:
    """4 bytes a row. Ten million rows take seconds, once an epoch."""
    order = array("I", range(length))
    random.Random(name).shuffle(order)
    return order
