"""What the trainer's senders hold, asked of each of them and checked to be one version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from services.weight_sync.control.plan import check_offers
from trimaran.errors import OutOfOrderError
from trimaran.types import (
    Caller,
    Manifest,
    Offer,
    PolicyVersion,
    Ranges,
    TransferGroup,
    TransferLimits,
    VersionId,
)


class Trainer(Protocol):
    """What is asked of a sender; `trimaran.clients.TrainerClient` is one."""

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]: ...
    async def get_offer(self, timeout: float) -> tuple[PolicyVersion, Offer]: ...
    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup: ...
    async def send_weights(
        self,
        version: VersionId,
        group_id: int,
        blocks: Ranges,
        base_root: str,
        limits: TransferLimits,
    ) -> int: ...
    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """A version that is to be staged."""

    version: PolicyVersion
    manifest: Manifest
    senders: Sequence[Trainer] = ()
    """Of the same length as `offers`; both are empty when only replicas hold the version."""
    offers: Sequence[Offer] = ()


Connect = Callable[[Caller], Sequence[Trainer]]
"""Clients of all senders, rank 0 first."""


@asynccontextmanager
async def ask_senders(
    connect: Connect, caller: Caller, version: PolicyVersion, timeout: float
) -> AsyncIterator[Target]:
    """Raises OutOfOrderError when a sender holds another version, InputError when the offers do
    not hold every block once, and what a sender raises that does not answer."""
    senders = connect(caller)
    try:
        (held, manifest), answers = await asyncio.gather(
            senders[0].get_policy_version(timeout),
            asyncio.gather(*(sender.get_offer(timeout) for sender in senders)),
        )
        _check_held(version, 0, replace(held, root=manifest.root))
        for rank, (held, _) in enumerate(answers):
            _check_held(version, rank, held)
        offers = tuple(offer for _, offer in answers)
        check_offers(manifest, offers)
        yield Target(version, manifest, senders, offers)
    finally:
        await asyncio.gather(*(sender.close() for sender in senders))


def _check_held(version: PolicyVersion, rank: int, held: PolicyVersion) -> None:
    if (held.version, held.root) != (version.version, version.root):
        raise OutOfOrderError(
            f"version {version.version} with root {version.root} cannot be sent:"
            f" trainer rank {rank} holds {held.version} with root {held.root}"
        )
