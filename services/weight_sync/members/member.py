"""A replica as weight sync knows it: its states, and what leads from one to the next. Pure.

registers ──▶ JOINING ──▶ PROVEN     each block that it had loaded was read back, and was right
                 │        ▲    │
                 ▼        │    ▼     a fault
                 FAILED ──┘◀───┘
any of them ──▶ GONE                 until it registers
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum, auto

from trimaran.run.weights import maker_name
from trimaran.types import Peer, PolicyVersion, Ranges, Replica
from weights.version.layout import count, unite


class State(Enum):
    JOINING = auto()
    """It has had no fault since it registered, or since weight sync was started again."""
    PROVEN = auto()
    """Since it registered or had a fault, each block of what it had loaded was read back and was right."""
    FAILED = auto()
    """It had a fault, and is tried again after a pause."""
    GONE = auto()
    """It is no member. Only what a later incarnation takes over from it counts."""


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """A version in the host memory of a replica. Example: StagedCopy(version.root, "/proc/7/fd/9")"""

    root: str
    path: str
    """Under which other processes of its host can read it; empty where it is itself another's."""


@dataclass(frozen=True, slots=True)
class Member:
    """One incarnation of a replica. Each method is something that happens to it, and gives the member
    afterwards: the same one where it does not apply.

    Example:

        member = Member(replica, peer, incarnation=1).load(version, "rollout-0")
        member = member.read(((0, 694),), "rollout-0").prove(version, 694, now)
        member.state is State.PROVEN
        member.condemn("wrong block", "rollout-0", now).maker  # "rollout-0~1"
    """

    replica: Replica
    peer: Peer
    incarnation: int
    """Counts registrations: a replica that came back is another member of the same name."""
    held: PolicyVersion | None = None
    """What it is known to have loaded; None after a registration or when in doubt."""
    state: State = State.JOINING
    reason: str = ""
    """Its last fault; empty once it is proven again."""
    failures: int = 0
    """Faults in a row; 0 also after a restart of weight sync, for which it has had none."""
    overtaken: int = 0
    """Since then: versions that became live before it was brought up to the one before them."""
    must_load: bool = False
    """A block of what it has loaded is wrong, or it has slept since: what it says it holds does not count."""
    num_wrong: int = 0
    """How often that was so, over all incarnations."""
    copy: StagedCopy | None = None
    """Its copy of the version that it loaded last, or was last asked to load; None where that is not known."""
    drained: bool = False
    """It leaves by its own wish: it gets no prompts, and ends as GONE."""
    right: Ranges = field(default=(), compare=False)
    """Until it is proven: blocks that were read back and were right since then, of whatever versions."""
    seen: float = field(default=0.0, compare=False)
    """Its last sign of life: time.monotonic()."""
    failed_at: float = field(default=0.0, compare=False)
    """The same for its last fault."""
    claim: tuple[PolicyVersion | None, PolicyVersion | None] | None = field(
        default=None, compare=False
    )
    """What its last heartbeat said, and what was believed, where the two differ."""

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def maker(self) -> str:
        """Who its tokens say that they are by."""
        return maker_name(self.name, self.num_wrong)

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.incarnation

    @property
    def takes_part(self) -> bool:
        """In the next publication. With a fault it is brought up alone; where versions come faster than
        that, it joins one after 1, 2, 4 … of them, so that one that hangs holds few of them up."""
        is_late = self.overtaken >= 2 ** max(self.failures - 1, 0)
        return self.state is not State.FAILED or is_late

    @property
    def has_copy(self) -> bool:
        """As far as is known: who has read another's cannot give the version to others."""
        return self.copy is None or self.copy.path != ""

    def lends(self, version: PolicyVersion) -> str:
        """The path of its copy, also where its engine has a wrong block or has loaded nothing; empty where
        it is known to have none."""
        return self.copy.path if self.copy and self.copy.root == version.root else ""

    def holds(self, version: PolicyVersion | None) -> bool:
        if self.held is None or version is None:
            return False
        return (self.held.version, self.held.root) == (version.version, version.root)

    def is_proven_at(self, live: PolicyVersion | None) -> bool:
        return self.state is State.PROVEN and self.holds(live)

    def register(self, replica: Replica, peer: Peer, now: float) -> Member:
        """It may be the same process, so a wrong block stays one."""
        return Member(
            *(replica, peer, self.incarnation + 1),
            must_load=self.must_load,
            num_wrong=self.num_wrong,
            seen=now,
        )

    def hear(self, held: PolicyVersion | None, now: float) -> Member:
        """A heartbeat says what it holds.

        One may have crossed a commit on its way; two in a row that differ in the
        same manner from what is believed have not.
        """
        heard = replace(self, seen=now, claim=None)
        agrees = (held is None and self.held is None) or self.holds(held)
        if agrees or self.must_load:
            return heard
        if self.claim != (held, self.held):
            return replace(heard, claim=(held, self.held))
        heard = replace(heard, held=held, copy=None)
        if self.held is None:
            return heard
        text = f"holds {held.version if held else 'nothing'} instead of {self.held.version}"
        return heard.fail(text, now)

    def load(self, version: PolicyVersion, maker: str, copy: StagedCopy | None = None) -> Member:
        """It has answered a COMMIT for `maker`: one that bore its former name loaded before a block was
        found wrong, and does not repair it."""
        if maker != self.maker:
            return self
        return replace(self, held=version, copy=copy, must_load=False)

    def doubt(self, copy: StagedCopy | None = None) -> Member:
        """What it holds is not known any more. `copy`: what it did not load."""
        return replace(self, held=None, copy=copy or self.copy)

    def wake(self) -> Member:
        """It sleeps, and is to load what it had. Until then it says that it holds it."""
        return replace(self, held=None, must_load=True)

    def read(self, blocks: Ranges, maker: str) -> Member:
        """They were read back and were right, as those of `maker`."""
        if self.state is State.PROVEN or maker != self.maker:
            return self
        return replace(self, right=unite(self.right, blocks))

    def prove(self, live: PolicyVersion, num_blocks: int, now: float) -> Member:
        """What was read back of it is on record as its proof of `live`."""
        if self.state is State.PROVEN:
            return replace(self, seen=now)  # who answers a read-back is not silent
        if not self.holds(live) or count(self.right) < num_blocks:
            return self
        proven = replace(self, state=State.PROVEN, right=(), seen=now)
        return replace(proven, reason="", failures=0, overtaken=0)

    def fail(self, reason: str, now: float) -> Member:
        failed = replace(self, state=State.FAILED, right=(), reason=reason, failed_at=now)
        return replace(failed, failures=self.failures + 1, overtaken=0)

    def overtake(self) -> Member:
        """A version became live while it was brought up to the one before."""
        return replace(self, overtaken=self.overtaken + 1) if self.state is State.FAILED else self

    def condemn(self, reason: str, maker: str, now: float) -> Member:
        """A block that it has loaded as `maker` is wrong: only a load can repair it, and its tokens bear
        another name from then on."""
        if maker != self.maker:
            return self  # it is repaired already, or about to be
        wrong = replace(self, held=None, must_load=True, num_wrong=self.num_wrong + 1)
        return wrong.fail(reason, now)

    def drain(self) -> Member:
        return replace(self, drained=True)

    def leave(self) -> Member:
        return replace(self, state=State.GONE)
