"""Which completion goes to which data-parallel rank and micro-batch: a pure function.

A group's completions share one prompt, and stand behind it in the packed tokens:

    [ prompt | completion 0 | completion 1 | … ] [ prompt | completion 0 | … ] …

A group that is too large for one micro-batch, or for one rank's share, is cut into pieces, each
behind a copy of the prompt. Groups are cut as little as that allows, because a copy costs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CUTS = (1, 2, 4)
"""Pieces of a group that is as large as a rank's share: the first that gives even work."""
EVEN = 1.1
"""Imbalance that a finer cut, which repeats more prompts, would hardly improve."""
LOOKED_INTO = 64
"""Bins, for one piece: with thousands of full ones the search would take longer than it brings."""


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """Packed tokens of a group or piece: its prompt, once, and each of its completions.

    Example: GroupLengths(prompt=38, completions=(24, 17)).num_tokens == 79
    """

    prompt: int
    completions: tuple[int, ...]
    images: float = 0.0
    """What the prompt's images cost besides, in tokens that attend to nothing."""

    @property
    def num_tokens(self) -> int:
        """0 for a group of which nothing is computed."""
        return self.prompt + sum(self.completions) if self.completions else 0

    def cost(self, attention: float) -> float:
        """The cost of its forward pass, in tokens that attend to nothing. `attention`: the share of such a
        token that it costs to attend to one other.

        The prompt attends to itself once, each completion to the prompt and to itself. Where the
        attention lays out whole sequences instead, because that is faster, it is counted alike.
        """
        own = sum(tokens * (self.prompt + tokens / 2) for tokens in self.completions)
        attended = self.prompt**2 / 2 + own if self.completions else 0.0
        return self.num_tokens + attention * attended + (self.images if self.completions else 0.0)

    def only(self, completions: Sequence[int]) -> GroupLengths:
        """A piece of it."""
        chosen = tuple(self.completions[index] for index in completions)
        return GroupLengths(self.prompt, chosen, self.images)


@dataclass(frozen=True, slots=True, order=True)
class GroupPiece:
    """Some of a group's completions. Example: GroupPiece(place=3, completions=(0, 2))"""

    place: int
    """The place of the group in the mini-batch."""
    completions: tuple[int, ...]


MicroBatch = tuple[GroupPiece, ...]


@dataclass(frozen=True, slots=True)
class PackingPlan:
    """Example: plan.micro_batches[rank][0] is the first micro-batch of a data-parallel rank"""

    micro_batches: tuple[tuple[MicroBatch, ...], ...]
    """As many for each rank, the costliest first. Where there are fewer pieces than that, some are
    empty."""
    costs: tuple[float, ...]
    """The `GroupLengths.cost` of each rank's pieces."""

    @property
    def imbalance(self) -> float:
        """The costliest rank's over the ranks' mean; 1 where all have the same to do."""
        return max(self.costs) * len(self.costs) / sum(self.costs) if any(self.costs) else 1.0


def plan_micro_batches(
    groups: Sequence[GroupLengths],
    data_parallel: int,
    micro_batch_tokens: int,
    attention: float = 0.0,
) -> PackingPlan:
    """Cut groups into pieces, and balance these over micro-batches and ranks by their cost.

    A micro-batch above `micro_batch_tokens` is one piece, of a single completion or of at most twice
    its prompt's tokens: smaller ones would hold little but copies of a long prompt.
    `attention`: as in `GroupLengths.cost`. Costliest first onto the least (Graham, 1969).
    """
    plans: list[PackingPlan] = []
    for cuts in CUTS:
        plans.append(_plan(groups, data_parallel, micro_batch_tokens, attention, cuts))
        if plans[-1].imbalance <= EVEN:
            break
    return min(plans, key=lambda plan: max(plan.costs))


def _plan(
    groups: Sequence[GroupLengths],
    data_parallel: int,
    micro_batch_tokens: int,
    attention: float,
    cuts: int,
) -> PackingPlan:
    """`cuts`: pieces of a group that is as large as a rank's share."""
    share = sum(group.cost(attention) for group in groups) / data_parallel / cuts
    pieces = [
        piece
        for place, group in enumerate(groups)
        for piece in _cut(place, group, share, micro_batch_tokens, attention)
    ]
    lengths = [groups[piece.place].only(piece.completions) for piece in pieces]
    tokens = [one.num_tokens for one in lengths]
    costs = [one.cost(attention) for one in lengths]

    bins = _fill_evenly(costs, tokens, data_parallel, micro_batch_tokens)
    bin_costs = [sum(costs[index] for index in one) for one in bins]
    shares = _deal(bin_costs, data_parallel, most=len(bins) // data_parallel)
    micro_batches = tuple(
        tuple(tuple(sorted(pieces[index] for index in bins[number])) for number in mine)
        for mine in shares
    )
    loads = [sum(bin_costs[number] for number in mine) for mine in shares]
    return PackingPlan(micro_batches, tuple(loads))


def _cut(
    place: int, group: GroupLengths, share: float, micro_batch_tokens: int, attention: float
) -> list[GroupPiece]:
    """Into as many pieces as it has shares of a rank, or as the limit of tokens asks for."""
    counts = group.completions
    if not counts:
        return []
    most = max(micro_batch_tokens, 2 * group.prompt)
    wanted = math.ceil(sum(counts) / (most - group.prompt))
    wanted = max(wanted, round(group.cost(attention) / share), 1)
    # One more each: a completion of one token is no input, and has its place all the same.
    weights = [count + 1 for count in counts]
    for number in range(min(wanted, len(counts)), len(counts) + 1):
        parts = [sorted(part) for part in _deal(weights, number)]
        if all(len(part) == 1 or group.only(part).num_tokens <= most for part in parts):
            return [GroupPiece(place, tuple(part)) for part in parts]
    raise AssertionError("pieces of one completion each are always allowed")


def _fill_evenly(
    costs: Sequence[float], tokens: Sequence[int], data_parallel: int, limit: int
) -> list[list[int]]:
    """The least number of bins that was found to do, a multiple of `data_parallel`."""

    def rounds(total: int) -> int:
        return max(math.ceil(total / (limit * data_parallel)), 1)

    num_bins = data_parallel * rounds(sum(tokens))
    while True:
        bins, left = _fill(costs, tokens, num_bins, limit)
        if not left:
            return bins
        num_bins += data_parallel * rounds(sum(tokens[index] for index in left))


def _fill(
    costs: Sequence[float], tokens: Sequence[int], num_bins: int, limit: int
) -> tuple[list[list[int]], list[int]]:
    """Each into the cheapest bin with room for its tokens; and those for which there was none."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    held, left = [0] * num_bins, []
    cheapest = [(0.0, number) for number in range(num_bins)]
    for index in _largest_first(costs):
        seen: list[tuple[float, int]] = []
        for _ in range(min(LOOKED_INTO, num_bins)):
            cost, number = heapq.heappop(cheapest)
            if not bins[number] or held[number] + tokens[index] <= limit:
                bins[number].append(index)
                held[number] += tokens[index]
                heapq.heappush(cheapest, (cost + costs[index], number))
                break
            seen.append((cost, number))
        else:
            left.append(index)
        for one in seen:
            heapq.heappush(cheapest, one)
    return bins, left


def _deal(costs: Sequence[float], num_shares: int, most: int = 0) -> list[list[int]]:
    """Even shares, of at most so many each; 0 stands for any number."""
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    cheapest = [(0.0, number) for number in range(num_shares)]
    for index in _largest_first(costs):
        cost, number = heapq.heappop(cheapest)
        shares[number].append(index)
        if len(shares[number]) != most:
            heapq.heappush(cheapest, (cost + costs[index], number))
    return shares


def _largest_first(costs: Sequence[float]) -> list[int]:
    return sorted(range(len(costs)), key=lambda index: (-costs[index], index))


def join(tokens: Sequence[int], limit: int) -> Iterator[range]:
    """Neighbours that have at most `limit` tokens together, or are alone.

    Example: list(join([40, 30, 50], limit=80)) == [range(0, 2), range(2, 3)]
    """
    first, total = 0, 0
    for index, count in enumerate(tokens):
        if index > first and total + count > limit:
            yield range(first, index)
            first, total = index, 0
        total += count
    if first < len(tokens):
        yield range(first, len(tokens))
