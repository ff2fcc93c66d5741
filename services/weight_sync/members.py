"""Who is in the run's rollout pool, and which version each replica holds. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trimaran.errors import InputError
from trimaran.types import Replica, VersionId


@dataclass(frozen=True, slots=True)
class Member:
    replica: Replica
    incarnation: int
    """Counts registrations: a replica that came back is another member of the same name."""
    version: VersionId | None = None
    """What it is known to have loaded; None after a registration or a fault."""
    reason: str = ""
    """Its last fault; empty once it holds a version again."""
    failures: int = 0
    """Faults in a row."""

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.incarnation


class Members:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(sorted(self._members.values(), key=lambda member: member.name))

    def get(self, name: str) -> Member:
        """Raises InputError for a name that never registered."""
        if name not in self._members:
            known = ", ".join(sorted(self._members)) or "none"
            raise InputError(f"replica {name!r} has not registered; known: {known}")
        return self._members[name]

    def register(self, replica: Replica) -> Member:
        before = self._members.get(replica.name)
        member = Member(replica, before.incarnation + 1 if before else 1)
        self._members[replica.name] = member
        return member

    def mark_live(self, member: Member, version: VersionId) -> None:
        self._update(member, version=version, reason="", failures=0)

    def mark_failed(self, member: Member, reason: str) -> None:
        failures = self._members[member.name].failures + 1
        self._update(member, version=None, reason=reason, failures=failures)

    def is_current(self, member: Member) -> bool:
        """False once the replica has registered again."""
        return self._members[member.name].key == member.key

    def _update(self, member: Member, **changes: Any) -> None:
        if self.is_current(member):
            self._members[member.name] = replace(self._members[member.name], **changes)

    def routable(self, live: VersionId | None) -> tuple[Replica, ...]:
        return tuple(m.replica for m in self if live is not None and m.version == live)

    def unroutable(self, live: VersionId | None) -> dict[str, str]:
        return {m.name: m.reason for m in self if live is None or m.version != live}

    def behind(self, live: VersionId | None) -> tuple[Member, ...]:
        return tuple(m for m in self if m.version != live)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "name": m.name,
                "address": m.replica.address,
                "incarnation": m.incarnation,
                "version": [m.version.lineage, m.version.step] if m.version else None,
                "reason": m.reason,
            }
            for m in self
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]]) -> Members:
        """Failures start at 0 again: each replica gets its tries anew."""
        members = cls()
        for row in rows:
            replica = Replica(row["name"], row["address"])
            version = VersionId(*row["version"]) if row["version"] else None
            members._members[replica.name] = Member(
                replica, row["incarnation"], version, row["reason"]
            )
        return members
