"""One copy of a version on each host: one member takes it, the others read it there. Pure.

    first round     one member of each host           from the senders
    next rounds     those with a neighbour that has it   from the neighbour's memory
                    else one member of each host      by relay

A neighbour that fails is followed by another one in the next round, not by all at once: the host may
have no room for more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.weight_sync.members.member import Member
from services.weight_sync.staging.transfer_plan import OTHER_HOLDERS, TransferPlan
from trimaran.config import TransportName
from trimaran.types import Manifest, Offer, Peer, RelaySource

Lenders = Mapping[str, "Lender"]
"""By host (`Peer.host`)."""


@dataclass(frozen=True, slots=True)
class Lender:
    """Where the version lies on a host."""

    peer: Peer
    path: str
    patched: bool = False
    """A delta was applied to it, which its relay has too."""


def host_of(member: Member, transport: TransportName) -> str:
    """Those of one host share a copy. Empty where a member has one to itself."""
    return member.peer.host if transport == "auto" else ""


def find_lenders(
    copies: Mapping[Member, str], transport: TransportName, patched: Collection[str] = ()
) -> dict[str, Lender]:
    """`copies`: where the version lies on each that has it; empty where that is another's. `patched`:
    names of those that have it by a delta."""
    return {
        host: Lender(member.peer, path, member.name in patched)
        for member, path in copies.items()
        if path and (host := host_of(member, transport))
    }


def prefer_owners(members: Sequence[Member]) -> list[Member]:
    """Those last that have a fault; of the others those first that have memory for a version already."""
    return sorted(members, key=lambda m: (m.failures > 0, not (m.copy and m.copy.path), m.name))


def take_turns(
    members: Sequence[Member], lenders: Lenders, transport: TransportName
) -> tuple[list[Member], list[Member]]:
    """(who takes the version now, who waits): of a host without a lender the first member takes it.

    Example: take_turns([a1, a2, b1, b2], {"b": lender}, "auto") is ([a1, b1, b2], [a2])
    """
    now: list[Member] = []
    later: list[Member] = []
    met: set[str] = set()
    for member in members:
        host = host_of(member, transport)
        waits = host in met and host not in lenders
        (later if waits else now).append(member)
        met |= {host} - {""}
    return now, later


def plan_shared(
    manifest: Manifest,
    offers: Sequence[Offer],
    members: Sequence[Member],
    lenders: Lenders,
    holders: Sequence[Member],
) -> TransferPlan:
    """For those whose host has the version. Where it cannot be read there, it is pulled. Whose engine has
    the base of the delta gets that too, to load what changed alone."""
    others = [*(m.peer for m in holders[:OTHER_HOLDERS]), *(offer.peer for offer in offers)]
    whole = ((0, manifest.num_blocks),)
    sources = {}
    for member in members:
        if lender := lenders.get(member.peer.host):
            # Its own copy may be the one.
            peers = dict.fromkeys(p for p in (lender.peer, *others) if p != member.peer)
            sources[member.name] = tuple(
                RelaySource(offer.blocks, tuple(peers), offer.delta, lender.path)
                for offer in offers
                if lender.patched and _has_base(member, offer)
            ) or (RelaySource(whole, tuple(peers), shared=lender.path),)
    return TransferPlan(sources)


def _has_base(member: Member, offer: Offer) -> bool:
    held, delta = member.held, offer.delta
    return held is not None and delta is not None and held.root == delta.base_root
