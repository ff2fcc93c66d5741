"""All replicas that have registered: where each stands, and what is asked of all of them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from services.weight_sync.members.member import Member, StagedCopy, State
from trimaran.errors import InputError
from trimaran.types import Peer, PolicyVersion, Replica, VersionId

Happened = Callable[[Member], Member]
"""One of `Member`'s methods, with what it needs to know."""


class Members:
    """By name.

    Example:

        members = Members()
        member = members.register(replica, peer, now=time.monotonic())
        members.tell(member, lambda member: member.fail("no answer", time.monotonic()))
        members.get("rollout-0").state is State.FAILED
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        """Without those that are gone."""
        here = (member for member in self._members.values() if member.state is not State.GONE)
        return iter(sorted(here, key=lambda member: member.name))

    def get(self, name: str) -> Member:
        """Raises InputError for a name that is no member's."""
        if (member := self.find(name)) is None:
            known = ", ".join(member.name for member in self) or "none"
            raise InputError(f"replica {name!r} has not registered; known: {known}")
        return member

    def find(self, name: str) -> Member | None:
        member = self._members.get(name)
        return member if member and member.state is not State.GONE else None

    def register(self, replica: Replica, peer: Peer, now: float) -> Member:
        before = self._members.get(replica.name, Member(replica, peer, 0))
        self._members[replica.name] = member = before.register(replica, peer, now)
        return member

    def tell(self, member: Member, happened: Happened) -> bool:
        """False where it changed no more than signs of life, or is late news: of one that has registered
        again or is gone."""
        if not self.is_current(member):
            return False
        before = self._members[member.name]
        self._members[member.name] = after = happened(before)
        return after != before

    def newest(self, member: Member) -> Member:
        """As it stands by now; as it is when the replica has registered again or is gone."""
        return self._members[member.name] if self.is_current(member) else member

    def is_current(self, member: Member) -> bool:
        newest = self.find(member.name)
        return newest is not None and newest.key == member.key

    def see_all(self, now: float) -> None:
        """Silence is counted from now: until now it was ours."""
        self._members = {name: replace(m, seen=now) for name, m in self._members.items()}

    def silent(self, now: float, timeout: float) -> tuple[Member, ...]:
        """Would take part in a publication, and gave no sign of life for `timeout` seconds."""
        return tuple(m for m in self if m.takes_part and now - m.seen > timeout)

    def taking_part(self) -> tuple[Member, ...]:
        """In a publication: those without a fault, or that could not be brought up without it; all when
        every one has a fault."""
        return tuple(member for member in self if member.takes_part) or tuple(self)

    @property
    def drained(self) -> frozenset[str]:
        """Names of those that have deregistered, until they register again."""
        return frozenset(name for name, member in self._members.items() if member.drained)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": m.name,
                "address": m.replica.address,
                "peer": [m.peer.relay, m.peer.key, m.peer.host, m.peer.backend],
                "incarnation": m.incarnation,
                "held": [m.held.run_id, m.held.version.lineage, m.held.version.step, m.held.root]
                if m.held
                else None,
                "proven": m.state is State.PROVEN,
                "reason": m.reason,
                "copy": [m.copy.root, m.copy.path] if m.copy else None,
                "must_load": m.must_load,
                "num_wrong": m.num_wrong,
                "forgotten": m.state is State.GONE,
            }
            for m in self._members.values()
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]], now: float) -> Members:
        """None has failed yet, and each was seen `now`: all its tries are ahead of it."""
        members = cls()
        for row in rows:
            held = None
            if row["held"]:
                run_id, lineage, step, root = row["held"]
                held = PolicyVersion(run_id, VersionId(lineage, step), root)
            state = State.PROVEN if row["proven"] else State.JOINING
            members._members[row["name"]] = Member(
                *(Replica(row["name"], row["address"]), Peer(*row["peer"]), row["incarnation"]),
                *(held, State.GONE if row["forgotten"] else state, row["reason"]),
                copy=StagedCopy(*row["copy"]) if row["copy"] else None,
                must_load=row["must_load"],
                num_wrong=row["num_wrong"],
                seen=now,
            )
        return members
