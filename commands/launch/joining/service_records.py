"""What services say of themselves in the run's store, and who of them is there.

Where no launcher has the processes as its children, each of them keeps a record, `service/RUN/NAME`,
and writes it again every few seconds. A write needs the version of the one before it, so a name has
one holder; and who sees for long that a record is not written knows that its holder is gone. No process
compares clocks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from trimaran.run.runs import service_key
from trimaran.store import ConflictError, Store, records

BEAT_SECONDS = 2.0
"""Between two writes of a record."""
LOST_SECONDS = 8.0
"""Without one, after which its holder counts as gone."""
STARTING_SECONDS = 60.0
"""The same while its process only starts: it takes the name first, and then executes itself again."""


@dataclass(frozen=True, slots=True)
class ServiceRecord:
    """Example: ServiceRecord("reward", "gpu-7/4f1c22d8/4026531836 4711 182345", "10.0.0.7:24711")"""

    name: str
    incarnation: str
    """One life of one process: `trimaran.run.lease.holder_name`."""
    address: str = ""
    """host:port at which it listens, or will; empty while it does not know."""
    code: int | None = None
    """How it ended: an exit code, or the signal that asked it to, negative; None while it lives."""
    lines: tuple[str, ...] = ()
    """What it said at its end."""
    former: ServiceRecord | None = None
    """The life before this one, whose end may not have been seen by everybody yet."""
    is_up: bool = False
    """The process has chosen its address and writes regularly; before that the address is the one of
    the life before."""
    doing: str = ""
    """What it does before it listens, or that takes long."""

    @property
    def has_ended(self) -> bool:
        return self.code is not None

    @property
    def listens_at(self) -> str:
        """host:port of this life; empty while it has said none, or has ended."""
        return self.address if self.is_up and not self.has_ended else ""

    def find(self, incarnation: str) -> ServiceRecord | None:
        """What this record knows of one life."""
        if self.incarnation == incarnation:
            return self
        return self.former.find(incarnation) if self.former else None

    def to_tree(self) -> dict[str, Any]:
        """As it stands in the store, whose key has the name."""
        return asdict(self)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> ServiceRecord:
        """What `to_tree` made."""
        return cls(
            tree["name"],
            tree["incarnation"],
            tree["address"],
            tree["code"],
            tuple(tree["lines"]),
            cls.from_tree(tree["former"]) if tree["former"] else None,
            tree["is_up"],
            tree.get("doing", ""),
        )


async def read_services(store: Store, run_id: str) -> dict[str, tuple[ServiceRecord, int]]:
    """All that ever registered, by name, each with its record's version."""
    prefix = service_key(run_id)
    return {
        key.removeprefix(prefix): (ServiceRecord.from_tree(record.value), record.version)
        async for key, record in records(store, prefix)
    }


async def end_life(store: Store, run_id: str, name: str, by: str) -> None:
    """Takes the name from its holder. No process calls that life from now on, and where it lives on it
    ends itself, at its next beat. `by`: who says so. Raises as each call of the store does.
    """
    key = service_key(run_id, name)
    while (found := await store.get(key)) is not None:
        record = ServiceRecord.from_tree(found.value)
        if record.has_ended:
            return
        over = replace(record, incarnation=by, code=-signal.SIGKILL, former=None, is_up=False)
        with suppress(ConflictError):  # it has just written: once more
            await store.put(key, over.to_tree(), found.version)
            return


@dataclass(slots=True)
class _Sighting:
    version: int
    heard_at: float
    is_beating: bool
    patience: float


class Sightings:
    """Who is heard, by the versions of records that one observer has seen.

    Example:
        sightings = Sightings()
        sightings.note(await read_services(store, run_id))
        sightings.is_beating("reward")
    """

    def __init__(self) -> None:
        self._known: dict[str, _Sighting] = {}
        self._noted_at: float | None = None

    def note(
        self, found: Mapping[str, tuple[ServiceRecord, int]], now: float | None = None
    ) -> None:
        """What was just read. To be called every second or so; time in which it was not called says
        nothing about anybody."""
        now = time.monotonic() if now is None else now
        first = self._noted_at is None
        deaf = 0.0 if self._noted_at is None else max(now - self._noted_at - BEAT_SECONDS, 0.0)
        self._noted_at = now
        for name, (record, version) in found.items():
            known = self._known.get(name)
            patience = LOST_SECONDS if record.is_up else STARTING_SECONDS
            if known is None:
                # How old a record is that stood there before we came is not known.
                self._known[name] = _Sighting(version, now, not first, patience)
            elif known.version != version:
                self._known[name] = _Sighting(version, now, True, patience)
            else:
                known.heard_at += deaf

    def is_beating(self, name: str) -> bool:
        """It was heard since we listen, and not too long ago."""
        known = self._known.get(name)
        return known is not None and known.is_beating and not self.is_lost(name)

    def is_lost(self, name: str) -> bool:
        """It was not heard for `LOST_SECONDS`, or `STARTING_SECONDS`, in which we listened."""
        known = self._known.get(name)
        return known is not None and (self._noted_at or 0.0) - known.heard_at >= known.patience
