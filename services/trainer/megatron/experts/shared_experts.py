"""The engine's choices of experts, from rank 0 to the ranks that replay them.

A rank needs those of the tokens that its data-parallel rank computes, in the layers of its stages. That
is the same for the ranks of one tensor- and context-parallel team, of which the first is the leader:

    rank 0 ── scatter: to each leader its own ──▶ leaders ── broadcast ──▶ the team of each

So each byte leaves rank 0 once. The others have no choices in their batch (services/trainer/exchange/shared_batch.py).

Axes: T tokens of a prompt, or that a pass reads of a completion, X bytes of a token in the layers of a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from services.trainer.exchange.shared_batch import in_chunks
from services.trainer.megatron.groups import team_group
from services.trainer.step.chosen_experts import StepExperts
from services.trainer.step.sequences import total_read
from services.trainer.step.updates import Update, computed_by
from trimaran.config.parallel import ParallelLayout, RankPlace
from trimaran.model.folder import ModelFacts

SCATTERED_BYTES = 64 << 20
"""On the device of rank 0 at a time."""


@dataclass(frozen=True, slots=True)
class ExpertShare:
    """The choices of one leader and its team."""

    numbers: tuple[int, ...]
    """Numbers of prompts and completions, as `StepExperts` counts them."""
    tokens: tuple[int, ...]
    """Tokens of each."""
    layers: tuple[int, ...]
    """As the whole model counts."""
    choice_bytes: int

    @property
    def width(self) -> int:
        """Bytes of a token: X."""
        return len(self.layers) * self.choice_bytes

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(self.tokens) * self.width

    def cut(self, reported: StepExperts) -> Iterator[Any]:
        """uint8 [T X] of each, out of those of all layers."""
        for number in self.numbers:
            data_TX = reported.data[number]
            by_layer = data_TX.reshape(len(data_TX), -1, self.choice_bytes)
            yield by_layer[:, list(self.layers)].reshape(-1)

    def join(self, data: Any, num_prompts: int) -> StepExperts:
        """From what `cut` gave, one after the other: uint8 [size]."""
        ends = np.cumsum(self.tokens)
        rows = data.reshape(sum(self.tokens), self.width)
        parts = np.split(rows, ends[:-1]) if self.numbers else []
        return StepExperts(num_prompts, dict(zip(self.numbers, parts, strict=True)))


def plan_shares(
    updates: Sequence[Update],
    is_known: Sequence[bool],
    facts: ModelFacts,
    layout: ParallelLayout,
    virtual_stages: int,
) -> dict[int, ExpertShare]:
    """By rank of the leader, in their order. `is_known`: of each prompt and completion of the step."""
    step, shares = updates[0].step, dict[int, ExpertShare]()
    lengths = [len(scored.group.prompt_token_ids) for scored in step.groups]
    lengths += [*map(total_read, step.completions_B)]
    for leader in leaders(layout):
        computed = computed_by(updates, leader.data)
        numbers = tuple(number for number in computed if is_known[number])
        shares[leader.rank] = ExpertShare(
            numbers=numbers,
            tokens=tuple(lengths[number] for number in numbers),
            layers=leader.layers(facts.num_layers, virtual_stages),
            choice_bytes=facts.choice_bytes,
        )
    return shares


def leaders(layout: ParallelLayout) -> list[RankPlace]:
    """One of each data-parallel rank and stage."""
    places = map(layout.place, range(layout.num_ranks))
    return [place for place in places if place.tensor == place.context == 0]


class SharedExperts:
    """Example: experts = SharedExperts(facts, place, 1, device, timeout=600.0).share(updates)"""

    def __init__(
        self,
        facts: ModelFacts,
        place: RankPlace,
        virtual_stages: int,
        device: torch.device,
        timeout: float,
    ) -> None:
        """Makes the group of the leaders: all ranks must call. Seconds."""
        self._facts, self._place, self._virtual_stages = facts, place, virtual_stages
        self._device = device
        places = leaders(place.layout)
        ranks = [one.rank for one in places]
        same = place.data, place.pipeline
        self._leader = next(one.rank for one in places if (one.data, one.pipeline) == same)
        self._leaders: Any = None
        if len(ranks) > 1:
            self._leaders = dist.new_group(ranks, timeout=timedelta(seconds=timeout))

    def share(self, updates: Sequence[Update]) -> StepExperts:
        """Those that this rank needs for the updates of a step. All ranks must call."""
        step = updates[0].step
        reported = StepExperts.reported(step.groups, step.completions_B)  # nothing but on rank 0
        known = torch.zeros(len(step.groups) + len(step.completions_B), dtype=torch.uint8)
        known[[*reported.data]] = 1
        known = known.to(self._device)
        dist.broadcast(known, 0)
        shares = plan_shares(
            updates,
            known.bool().tolist(),
            self._facts,
            self._place.layout,
            self._virtual_stages,
        )
        own = shares[self._leader]
        return own.join(self._exchange(reported, shares), len(step.groups))

    def _exchange(self, reported: StepExperts, shares: dict[int, ExpertShare]) -> Any:
        """uint8 [size] on the host, of this rank's share. A round takes equally much of each share: what a
        scatter can send."""
        most = max(share.size for share in shares.values())
        length = min(SCATTERED_BYTES // len(shares), most)
        streams = [in_chunks(share.cut(reported), length) for share in shares.values()]
        data = np.empty(shares[self._leader].size, np.uint8)
        for start in range(0, most, max(length, 1)):
            received = torch.empty(length, dtype=torch.uint8, device=self._device)
            parts = None
            if self._place.rank == 0:
                parts = [torch.from_numpy(next(one)).to(self._device) for one in streams]
            self._send(received, parts)
            own = data[start : start + length]
            own[:] = received[: len(own)].cpu().numpy()
        return data

    def _send(self, received: torch.Tensor, parts: list[torch.Tensor] | None) -> None:
        if self._leaders is None:
            if parts is not None:
                received.copy_(parts[0])
        elif self._place.rank == self._leader:
            dist.scatter(received, parts, src=0, group=self._leaders)
        if (team := team_group()) is not None:
            dist.broadcast(received, self._leader, group=team)
