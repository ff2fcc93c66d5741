"""Which group goes to which data-parallel rank and micro-batch: a pure function.

    plan_micro_batches([50, 70, 60, 40], data_parallel=2, micro_batch_tokens=100)
    -> (((1,), (3,)), ((2,), (0,)))   # [rank][micro-batch] -> places of groups

A group is never split, because its completions share one prompt:

    [ prompt | completion 0 | completion 1 | … ] [ prompt | completion 0 | … ] …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """Packed tokens of one group: its prompt, once, and each of its completions.

    Example: GroupLengths(prompt=38, completions=(24, 17)).num_tokens == 79
    """

    prompt: int
    completions: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        """0 for a group of which nothing is computed."""
        return self.prompt + sum(self.completions) if self.completions else 0


MicroBatch = tuple[int, ...]
"""Places of groups in the mini-batch."""


def plan_micro_batches(
    group_tokens: Sequence[int], data_parallel: int, micro_batch_tokens: int
) -> tuple[tuple[MicroBatch, ...], ...]:
    """Balance groups over ranks, then pack each rank's groups into micro-batches.

    `group_tokens`: tokens of each group; one with 0 tokens needs no computation
    and is left out. A group above `micro_batch_tokens` gets a micro-batch of its
    own. The ranks may get different numbers of micro-batches, even none.
    """
    shares = _balance(group_tokens, data_parallel)
    return tuple(_pack(share, group_tokens, micro_batch_tokens) for share in shares)


def _largest_first(group_tokens: Sequence[int]) -> list[int]:
    places = [place for place, tokens in enumerate(group_tokens) if tokens]
    return sorted(places, key=lambda place: (-group_tokens[place], place))


def _balance(group_tokens: Sequence[int], data_parallel: int) -> list[list[int]]:
    """Largest first onto the rank with the least: at most 4/3 of the best (Graham, 1969)."""
    shares: list[list[int]] = [[] for _ in range(data_parallel)]
    loads = [0] * data_parallel
    for place in _largest_first(group_tokens):
        rank = loads.index(min(loads))
        shares[rank].append(place)
        loads[rank] += group_tokens[place]
    return shares


def _pack(
    share: Sequence[int], group_tokens: Sequence[int], micro_batch_tokens: int
) -> tuple[MicroBatch, ...]:
    """First fit; largest first also puts groups of like size together."""
    micro_batches: list[list[int]] = []
    room: list[int] = []
    for place in share:
        tokens = group_tokens[place]
        fits = next((i for i, left in enumerate(room) if tokens <= left), None)
        if fits is None:
            micro_batches.append([])
            room.append(micro_batch_tokens)
            fits = len(room) - 1
        micro_batches[fits].append(place)
        room[fits] -= tokens
    return tuple(tuple(micro_batch) for micro_batch in micro_batches)
