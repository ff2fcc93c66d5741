"""What the trainer's senders hold, asked of each of them and checked to be one version."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from trimaran.clients import TrainerClient
from trimaran.errors import InputError, OutOfOrderError
from trimaran.types import (
    Caller,
    Manifest,
    Offer,
    PolicyVersion,
)
from weights.version.manifest import list_blocks


@dataclass(frozen=True, slots=True)
class SendTarget:
    """A version that is to be staged."""

    version: PolicyVersion
    manifest: Manifest
    senders: Sequence[TrainerClient] = ()
    """As many as `offers`; both are empty when only replicas hold the version."""
    offers: Sequence[Offer] = ()


Connect = Callable[[Caller], Sequence[TrainerClient]]
"""Clients of all senders, rank 0 first."""


@asynccontextmanager
async def ask_senders(
    connect: Connect, caller: Caller, version: PolicyVersion, timeout: float
) -> AsyncIterator[SendTarget]:
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
        yield SendTarget(version, manifest, senders, offers)
    finally:
        await asyncio.gather(*(sender.close() for sender in senders))


def _check_held(version: PolicyVersion, rank: int, held: PolicyVersion) -> None:
    if (held.version, held.root) != (version.version, version.root):
        raise OutOfOrderError(
            f"version {version.version} with root {version.root} cannot be sent:"
            f" trainer rank {rank} holds {held.version} with root {held.root}"
        )


def check_offers(manifest: Manifest, offers: Sequence[Offer]) -> None:
    """Raises InputError unless the offers hold every block exactly once."""
    expected = 0
    for first, end in sorted(pair for offer in offers for pair in offer.blocks):
        if first > expected:
            raise InputError(f"no sender offers {_name_blocks(manifest, expected, first)}")
        if first < expected:
            again = _name_blocks(manifest, first, min(end, expected))
            raise InputError(f"more than one sender offers {again}")
        expected = end
    if expected < manifest.num_blocks:
        raise InputError(
            f"no sender offers {_name_blocks(manifest, expected, manifest.num_blocks)}"
        )
    if expected > manifest.num_blocks:
        raise InputError(f"block {expected - 1} is offered; the manifest has {manifest.num_blocks}")


def _name_blocks(manifest: Manifest, first: int, end: int) -> str:
    """Example: "blocks 3..5 (lm_head.weight and on)"; `end` is exclusive."""
    block = list_blocks(manifest.tensors)[first]
    return f"blocks {first}..{end - 1} ({block.tensor.name} and on)"
