"""One copy of a version on each host: one member takes it, the others read it there. Pure.

    first round     one member of each host           from the senders
    next rounds     whoever has a neighbour with it   from the neighbour's memory
                    else one member of each host      by relay

A neighbour that fails is followed by another one in the next round, not by all at once: the host may
have no room for more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from services.weight_sync.control.member import Member
from services.weight_sync.control.plan import OTHER_HOLDERS, Plan
from trimaran.types import Manifest, Offer, Peer, RelaySource, Staged

Lenders = Mapping[str, "Lender"]
"""By host (`Peer.host`)."""


@dataclass(frozen=True, slots=True)
class Lender:
    """Where the version lies on a host."""

    peer: Peer
    path: str


def find_lenders(staged: Mapping[Member, Staged]) -> dict[str, Lender]:
    """Those with a copy of their own."""
    return {
        member.peer.host: Lender(member.peer, found.path)
        for member, found in staged.items()
        if found.path and member.peer.host
    }


def prefer_owners(members: Sequence[Member]) -> list[Member]:
    """Those first that have the memory for a version already, and those last that have a fault."""
    return sorted(members, key=lambda m: (not m.shadow, m.failures > 0, m.name))


def take_turns(
    members: Sequence[Member], hosts: Collection[str]
) -> tuple[list[Member], list[Member]]:
    """(who takes the version now, who waits). `hosts`: those that have it; of any other the first
    member takes it.

    Example: take_turns([a1, a2, b1, b2], {"b"}) is ([a1, b1, b2], [a2])
    """
    now: list[Member] = []
    later: list[Member] = []
    met: set[str] = set()
    for member in members:
        host = member.peer.host
        waits = host in met and host not in hosts
        (later if waits else now).append(member)
        met |= {host} - {""}
    return now, later


def plan_shared(
    manifest: Manifest,
    offers: Sequence[Offer],
    members: Sequence[Member],
    lenders: Lenders,
    holders: Sequence[Member],
) -> Plan:
    """For those whose host has the version. Where it cannot be read there, it is pulled."""
    others = [*(m.peer for m in holders[:OTHER_HOLDERS]), *(offer.peer for offer in offers)]
    blocks = ((0, manifest.num_blocks),)
    sources = {}
    for member in members:
        if lender := lenders.get(member.peer.host):
            peers = tuple(dict.fromkeys((lender.peer, *others)))
            sources[member.name] = (RelaySource(blocks, peers, shared=lender.path),)
    return Plan(sources)
