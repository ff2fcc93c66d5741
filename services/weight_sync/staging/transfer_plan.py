"""Who gets which blocks from whom. Pure.

    offers of the senders ─┐
    members of the pool  ──┼─▶ for each member: Sources that together hold every block
    configured transport ──┘

Same host: the sender's memory; of several members there one alone (`sharing.py`). Else one
collective group a sender. A member that cannot take part in a group (it computes on another kind of
device, it lacks the delta's base, its group broke, it joined late) pulls by relay, in a tree:

    holder 0 ─▶ puller 0 ─▶ puller 2 …        each node serves `fan_out` pullers;
    holder 1 ─▶ puller 1 ─▶ puller 3 …        the senders are asked last
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.weight_sync.members.member import Member
from trimaran.config import TransportName
from trimaran.host.device import BACKENDS
from trimaran.types import (
    Delta,
    Manifest,
    MemorySource,
    Offer,
    Peer,
    Ranges,
    RelaySource,
    Source,
)
from weights.version.manifest import num_bytes

OTHER_HOLDERS = 4
"""Asked by a puller besides those between it and the root of its tree."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What one sender broadcasts, and to whom."""

    sender: int
    seats: tuple[Member, ...]
    """Ranks 1, 2, … of the group."""
    blocks: Ranges
    delta: Delta | None


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Who gets which blocks from whom.

    Example:

        plan = plan_stage(manifest, offers, members, "auto", fan_out=2)
        plan.sources["rollout-0"]  # (MemorySource(...),) on the sender's own host
    """

    sources: dict[str, tuple[Source, ...]]
    """By member name; what it gets without a group."""
    groups: tuple[GroupPlan, ...] = ()

    @property
    def patched(self) -> set[str]:
        """Names of those that get a delta."""
        seated = {seat.name for group in self.groups if group.delta for seat in group.seats}
        return seated | {
            name for name, found in self.sources.items() if any(source.delta for source in found)
        }


def plan_stage(
    manifest: Manifest,
    offers: Sequence[Offer],
    members: Sequence[Member],
    transport: TransportName,
    fan_out: int,
) -> TransferPlan:
    """All members at once, from the senders."""
    patched = _patched(manifest, offers, members, transport)
    sources: dict[str, list[Source]] = {member.name: [] for member in members}
    groups: list[GroupPlan] = []
    for sender, offer in enumerate(offers):
        near = {m.name for m in members if transport == "auto" and is_near(offer, m)}
        far = [m for m in members if m.name not in near]
        with_base = [m for m in far if m.name in patched]
        without = [m for m in far if m.name not in patched]
        for name in near:
            sources[name].append(MemorySource(offer.blocks, offer.memory))
        seats = [m for m in with_base if _can_join(m, offer, transport)]
        seats = seats or [m for m in without if _can_join(m, offer, transport)]
        if seats:
            delta = offer.delta if seats[0].name in patched else None
            groups.append(GroupPlan(sender, tuple(seats), offer.blocks, delta))
        seated = {m.name for m in seats}
        for left, delta in ((with_base, offer.delta), (without, None)):
            pullers = [m for m in left if m.name not in seated]
            tree = _tree(offer.blocks, pullers, (), offer.peer, fan_out, delta, pullers)
            for name, source in tree:
                sources[name].append(source)
    return TransferPlan({name: tuple(found) for name, found in sources.items()}, tuple(groups))


def _patched(
    manifest: Manifest, offers: Sequence[Offer], members: Sequence[Member], transport: TransportName
) -> set[str]:
    """Names of those for whom changed elements are enough, and are less to send."""
    full = sum(num_bytes(tensor) for tensor in manifest.tensors)
    deltas = [offer.delta for offer in offers if offer.delta is not None]
    bases = {delta.base_root for delta in deltas}
    if len(deltas) < len(offers) or len(bases) != 1:
        return set()
    if sum(delta.num_bytes for delta in deltas) >= full:
        return set()
    return {
        member.name
        for member in members
        if member.held
        and member.held.root in bases
        and member.has_copy
        and not (transport == "auto" and any(is_near(offer, member) for offer in offers))
    }


def _can_join(member: Member, offer: Offer, transport: TransportName) -> bool:
    """A group has one backend for all of its members."""
    return transport != "relay" and member.peer.backend == offer.peer.backend


def is_near(offer: Offer, member: Member) -> bool:
    """The member copies out of the sender's memory: neither computes on an accelerator."""
    backends = {offer.peer.backend, member.peer.backend}
    return offer.peer.host == member.peer.host != "" and backends == {BACKENDS["cpu"]}


def plan_relay(
    manifest: Manifest,
    offers: Sequence[Offer],
    pullers: Sequence[Member],
    holders: Sequence[Member],
    fan_out: int,
    chosen: Sequence[Member] | None = None,
) -> TransferPlan:
    """From members that hold the version; the senders, if there are offers, are asked last.

    `chosen`: those of the pullers whose sources are wanted; None means all.
    """
    shares: list[tuple[Ranges, Peer | None]] = [(offer.blocks, offer.peer) for offer in offers]
    if not shares:
        shares = [(((0, manifest.num_blocks),), None)]
    wanted = pullers if chosen is None else chosen
    sources: dict[str, list[Source]] = {member.name: [] for member in wanted}
    for blocks, sender in shares:
        for name, source in _tree(blocks, pullers, holders, sender, fan_out, None, wanted):
            sources[name].append(source)
    return TransferPlan({name: tuple(found) for name, found in sources.items()})


def plan_catch_up(
    manifest: Manifest,
    offers: Sequence[Offer],
    member: Member,
    pullers: Sequence[Member],
    holders: Sequence[Member],
    transport: TransportName,
    fan_out: int,
) -> TransferPlan:
    """For one of `pullers`: the sender's memory on its host, else its place in their tree."""
    if transport == "auto" and offers and all(is_near(offer, member) for offer in offers):
        return TransferPlan({member.name: tuple(MemorySource(o.blocks, o.memory) for o in offers)})
    return plan_relay(manifest, offers, pullers, holders, fan_out, [member])


def _tree(
    blocks: Ranges,
    pullers: Sequence[Member],
    holders: Sequence[Member],
    sender: Peer | None,
    fan_out: int,
    delta: Delta | None,
    wanted: Sequence[Member],
) -> list[tuple[str, Source]]:
    last = [sender] if sender else []
    roots = [member.peer for member in holders] or last
    nodes = [*roots, *(member.peer for member in pullers)]
    places = {member.name: place for place, member in enumerate(pullers)}
    found: list[tuple[str, Source]] = []
    for member in wanted:
        order = [*ask_order(places[member.name], roots, nodes, fan_out), *last]
        peers = tuple(dict.fromkeys(order))
        found.append((member.name, RelaySource(blocks, peers, delta)))
    return found


def ask_order(
    puller: int, roots: Sequence[Peer], nodes: Sequence[Peer], fan_out: int
) -> list[Peer]:
    """The puller's parent in the tree, the parent's, … up to a root, then some other roots.

    The first root comes last: the one that keeps its copy while a stage, even one that fails,
    writes over those of the others.

    `nodes` are the roots and then the pullers; node n's parent is node
    (n - len(roots)) // fan_out, so that each node has `fan_out` children.
    """
    if not roots:
        return []
    node = puller + len(roots)
    order: list[Peer] = []
    while node >= len(roots):
        node = (node - len(roots)) // fan_out
        order.append(nodes[node])
    others = min(OTHER_HOLDERS, len(roots) - 1)
    order += [roots[(node + 1 + i) % len(roots)] for i in range(others)]
    return list(dict.fromkeys([*order, roots[0]]))


def delta_share(manifest: Manifest, plan: TransferPlan) -> float | None:
    """Bytes of the delta over those of the version; None when no member gets it."""
    deltas = {
        group.blocks: group.delta.num_bytes for group in plan.groups if group.delta is not None
    } | {
        source.blocks: delta.num_bytes
        for sources in plan.sources.values()
        for source in sources
        if (delta := source.delta) is not None
    }
    full = sum(num_bytes(tensor) for tensor in manifest.tensors)
    return sum(deltas.values()) / full if deltas and full else None
