"""Who is in the run's rollout pool, what each replica holds, and whether that is proven. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from services.weight_sync.data.layout import unite
from trimaran.errors import InputError
from trimaran.types import Peer, PolicyVersion, Ranges, Replica, VersionId


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a replica, as weight sync knows it. Made by `Members.register`."""

    replica: Replica
    peer: Peer
    incarnation: int
    """Counts registrations: a replica that came back is another member of the same name."""
    held: PolicyVersion | None = None
    """What it is known to have loaded; None after a registration or when in doubt."""
    proven: bool = False
    """Since it registered or had a fault, each block of what it had loaded was read back and was right."""
    reason: str = ""
    """Its last fault; empty once it is proven again."""
    failures: int = 0
    """Faults in a row."""
    must_load: bool = False
    """A block of what it has loaded is wrong: what it says it holds does not count."""
    num_wrong: int = 0
    """How often that was so, over all incarnations."""
    right: Ranges = field(default=(), compare=False)
    """Until it is proven: blocks that were read back and were right since then, of whatever versions."""

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def maker(self) -> str:
        """Who its tokens say that they are by."""
        return f"{self.name}~{self.num_wrong}" if self.num_wrong else self.name

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.incarnation

    def holds(self, version: PolicyVersion | None) -> bool:
        if self.held is None or version is None:
            return False
        return (self.held.version, self.held.root) == (version.version, version.root)


class Members:
    """Everybody who has registered, by name.

    Example:

        members = Members()
        member = members.register(replica, peer, now=time.monotonic())
        members.mark_wrong(member)
        members.get("rollout-0").maker  # "rollout-0~1"
    """

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._forgotten: dict[str, Member] = {}
        """Only what a later incarnation takes over from them counts."""
        self._seen: dict[str, float] = {}
        self._disputes: dict[str, tuple[PolicyVersion | None, PolicyVersion | None]] = {}
        self.drained: set[str] = set()
        """Names of those that have deregistered, until they register again."""

    def __iter__(self) -> Iterator[Member]:
        return iter(sorted(self._members.values(), key=lambda member: member.name))

    def get(self, name: str) -> Member:
        """Raises InputError for a name that never registered."""
        if name not in self._members:
            known = ", ".join(sorted(self._members)) or "none"
            raise InputError(f"replica {name!r} has not registered; known: {known}")
        return self._members[name]

    def find(self, name: str) -> Member | None:
        return self._members.get(name)

    def register(self, replica: Replica, peer: Peer, now: float) -> Member:
        before = self._members.get(replica.name) or self._forgotten.pop(replica.name, None)
        member = Member(replica, peer, 1)
        if before is not None:
            member = replace(
                member,
                incarnation=before.incarnation + 1,
                must_load=before.must_load,
                num_wrong=before.num_wrong,
            )
        self._members[replica.name] = member
        self._seen[replica.name] = now
        self._disputes.pop(replica.name, None)
        self.drained.discard(replica.name)
        return member

    def forget(self, member: Member) -> None:
        """It is no member any more, until it registers."""
        self._forgotten[member.name] = self._members.pop(member.name)

    def mark_held(self, member: Member, version: PolicyVersion | None) -> None:
        self._update(member, held=version)

    def mark_loaded(self, member: Member, version: PolicyVersion) -> None:
        """Nothing when a block was found wrong meanwhile: what it loaded has its former name."""
        if self.newest(member).maker == member.maker:
            self._update(member, held=version, must_load=False)

    def mark_right(self, member: Member, blocks: Ranges) -> None:
        """Nothing when a block was found wrong meanwhile, as in `mark_loaded`."""
        newest = self.newest(member)
        if not newest.proven and newest.maker == member.maker:
            self._update(member, right=unite(newest.right, blocks))

    def mark_proven(self, member: Member) -> None:
        self._update(member, proven=True, right=(), reason="", failures=0)

    def mark_failed(self, member: Member, reason: str) -> None:
        if self.is_current(member):
            failures = self._members[member.name].failures + 1
            self._update(member, proven=False, right=(), reason=reason, failures=failures)

    def mark_wrong(self, member: Member) -> None:
        if self.is_current(member):
            num_wrong = self._members[member.name].num_wrong + 1
            self._update(member, held=None, right=(), must_load=True, num_wrong=num_wrong)

    def newest(self, member: Member) -> Member:
        """As it stands by now; as it is when the replica has registered again."""
        return self._members[member.name] if self.is_current(member) else member

    def is_current(self, member: Member) -> bool:
        """False once the replica has registered again, or is forgotten."""
        newest = self._members.get(member.name)
        return newest is not None and newest.key == member.key

    def _update(self, member: Member, **changes: Any) -> None:
        if self.is_current(member):
            self._members[member.name] = replace(self._members[member.name], **changes)

    def note_sign(
        self, name: str, incarnation: int, claimed: PolicyVersion | None, now: float
    ) -> tuple[Member | None, bool]:
        """A heartbeat: the member, None when unknown, and whether its claim stands against ours.

        One claim may have crossed a commit on its way; two in a row that
        differ in the same manner from what is believed have not.
        """
        member = self._members.get(name)
        if member is None or member.incarnation != incarnation:
            return None, False
        self._seen[name] = now
        before = self._disputes.pop(name, None)
        agrees = (claimed is None and member.held is None) or member.holds(claimed)
        if agrees or member.must_load:
            return member, False
        self._disputes[name] = claimed, member.held
        return member, before == (claimed, member.held)

    def note_answer(self, member: Member, now: float) -> None:
        """Who answers a call is not silent."""
        if self.is_current(member):
            self._seen[member.name] = now

    def see_all(self, now: float) -> None:
        """Silence is counted anew: until now it was ours."""
        self._seen = dict.fromkeys(self._seen, now)

    def silent(self, now: float, timeout: float) -> tuple[Member, ...]:
        """Without a fault yet, and without a sign of life for `timeout` seconds."""
        return tuple(m for m in self if not m.reason and now - self._seen[m.name] > timeout)

    def proven(self, live: PolicyVersion | None) -> tuple[Member, ...]:
        """Hold the live version, and hold it rightly."""
        return tuple(m for m in self if m.proven and m.holds(live))

    def behind(self, live: PolicyVersion | None) -> tuple[Member, ...]:
        return tuple(m for m in self if not (m.proven and m.holds(live)))

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
                "proven": m.proven,
                "reason": m.reason,
                "must_load": m.must_load,
                "num_wrong": m.num_wrong,
                "forgotten": m.name in self._forgotten,
            }
            for m in (*self, *self._forgotten.values())
        ]

    @classmethod
    def from_json(cls, rows: list[dict[str, Any]], now: float) -> Members:
        """Failures start at 0 again, and everybody was seen `now`: each gets its tries anew."""
        members = cls()
        for row in rows:
            replica = Replica(row["name"], row["address"])
            held = None
            if row["held"]:
                run_id, lineage, step, root = row["held"]
                held = PolicyVersion(run_id, VersionId(lineage, step), root)
            kept = members._forgotten if row.get("forgotten") else members._members
            kept[replica.name] = Member(
                *(replica, Peer(*row["peer"]), row["incarnation"]),
                *(held, row["proven"], row["reason"]),
                must_load=row["must_load"],
                num_wrong=row["num_wrong"],
            )
            members._seen[replica.name] = now
        return members
