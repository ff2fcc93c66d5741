"""Each sender's transfer group: opened when first needed, used again while it is healthy."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from services.weight_sync.staging.transfer_plan import GroupPlan
from trimaran.clients import TrainerClient
from trimaran.errors import TransferError
from trimaran.types import TransferGroup

logger = logging.getLogger(__name__)

Seats = tuple[tuple[str, int], ...]
"""Keys of the members (`Member.key`), in the order of their ranks."""


class TransferGroups:
    """At most one open group a sender."""

    def __init__(self, next_group_id: Callable[[], Awaitable[int]]) -> None:
        """`next_group_id` never gives a number twice, not even after a restart."""
        self._next_group_id = next_group_id
        self._kept: dict[int, tuple[Seats, TransferGroup]] = {}
        """By sender."""

    async def open(
        self, plans: Sequence[GroupPlan], senders: Sequence[TrainerClient], timeout: float
    ) -> tuple[TransferGroup, ...]:
        """One group for each plan. Raises what a sender raises that cannot open its group."""
        opened = (self._open(plan, senders[plan.sender], timeout) for plan in plans)
        return tuple(await asyncio.gather(*opened))

    def forget(self) -> None:
        """After a failure: the next transfers travel in new groups."""
        self._kept.clear()

    async def _open(self, plan: GroupPlan, sender: TrainerClient, timeout: float) -> TransferGroup:
        seats = tuple(member.key for member in plan.seats)
        kept_seats, kept = self._kept.get(plan.sender, ((), None))
        if kept is not None and kept_seats == seats:
            try:
                return await sender.open_transfer(kept, timeout)
            except TransferError as error:
                logger.info("transfer group %d is not used again: %s", kept.group_id, error)
        group_id = await self._next_group_id()
        group = TransferGroup(group_id, secrets.token_hex(16), len(seats) + 1, "")
        self._kept.pop(plan.sender, None)
        opened = await sender.open_transfer(group, timeout)
        self._kept[plan.sender] = seats, opened
        return opened
