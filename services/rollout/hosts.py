"""A replica on several hosts: its processes meet in the run's store before its engine starts.

    rollout-0 (rank 0)              store                    follower-0 (rank 1)
        │ meeting, where the engine's │                              │
        │ processes will meet         │                              │
        ├────────────────────────────▶│◀─────────────────────────────┤ looks for a meeting
        │                             │◀─────────────────────────────┤ its life, for that meeting
        │ looks for all lives ───────▶│                              │
        ├── the lives that have met ─▶│◀─────────────────────────────┤ finds itself among them
        ▼                             │                              ▼
    starts the engine                 │               starts its part of the engine

A life is one start of one process. A process that was started again has another one, and an engine cannot take
it in: so the processes of a replica end together, and meet again. The launcher sees to that; each of
them also looks itself, because a launcher may be younger than a death.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, LeftBehindError, UnavailableError
from trimaran.run.environment import followers_of, part_of, process_name
from trimaran.store import Store
from trimaran.wire import health_note

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class HostPlace:
    """Which part of a replica's engine this process has.

    Example: HostPlace(1, 2, "10.0.0.7:24711", "4f1c…") is the second of two hosts.
    """

    rank: int = 0
    count: int = 1
    rendezvous: str = ""
    """host:port on the first host, where the engine's own processes meet."""
    meeting: str = ""
    """Names the lives that belong together."""


ONE_HOST = HostPlace()


class HostMeeting:
    """One process of a replica meets the others.

    Example:
        meeting = HostMeeting(config, run_id, "follower", index=0)
        place = await meeting.follow(store)      # the first host's process: await meeting.lead(store, address)
        await meeting.until_broken(store)        # beside its work
    """

    def __init__(
        self, config: RunConfig, run_id: str, kind: str, index: int, look: float = LOOK_SECONDS
    ) -> None:
        replica, self._rank = part_of(config, kind, index)
        self._leader = process_name("rollout", replica)
        self._followers = [process_name("follower", one) for one in followers_of(config, replica)]
        self._name = process_name(kind, index)
        self._timeout = config.start_timeout
        self._prefix = f"replica_hosts/{run_id}/"
        self._look = look
        self._life = uuid.uuid4().hex
        self._met: Mapping[str, Any] = {}
        """The meeting's record, once all have come."""

    async def lead(self, store: Store, rendezvous: str) -> HostPlace:
        """As the first host's process. `rendezvous`: a free host:port here. Raises DeadlineError naming
        who has not come within `start_timeout`, and as the store does."""
        called = {"meeting": self._life, "rendezvous": rendezvous, "lives": None}
        await store.put(self._key(self._leader), called)
        deadline = time.monotonic() + self._timeout
        while True:
            lives = [await self._life_of(store, name) for name in self._followers]
            if all(lives):
                break
            if time.monotonic() >= deadline:
                missing = [
                    name for name, life in zip(self._followers, lives, strict=True) if not life
                ]
                raise DeadlineError(
                    f"{self._leader}: {', '.join(missing)} did not come within {self._timeout:g} s; see"
                    " that each was started on its host, and reaches the run's store"
                )
            await asyncio.sleep(self._look)
        self._met = called | {"lives": lives}
        await store.put(self._key(self._leader), dict(self._met))
        return self._begin()

    async def follow(self, store: Store) -> HostPlace:
        """As one of the others. Raises DeadlineError when the first host's process does not take it in
        within `start_timeout`, and as the store does."""
        deadline, answered = time.monotonic() + self._timeout, ""
        while True:
            record = await store.get(self._key(self._leader))
            called = record.value if record else {"meeting": "", "lives": None}
            if called["meeting"] != answered:
                answered = called["meeting"]
                own = {"meeting": answered, "life": self._life}
                await store.put(self._key(self._name), own)
            elif called["lives"] and called["lives"][self._rank - 1] == self._life:
                self._met = called
                return self._begin()
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"{self._name}: {self._leader} has not met its hosts within {self._timeout:g} s; see"
                    " that it was started"
                )
            await asyncio.sleep(self._look)

    async def until_broken(self, store: Store) -> None:
        """Raises LeftBehindError once those that have met are not those that are there."""
        while True:
            await asyncio.sleep(self._look)
            try:
                gone = await self._find_replaced(store)
            except UnavailableError as error:
                logger.warning("whether the hosts are still the same cannot be seen: %s", error)
                continue
            if gone:
                raise LeftBehindError(
                    f"{self._name}: {gone} was started again; it ends, so that the replica's hosts meet"
                    " again"
                )

    async def _find_replaced(self, store: Store) -> str:
        if self._rank:
            record = await store.get(self._key(self._leader))
            same = record is not None and record.value["meeting"] == self._met["meeting"]
            return "" if same else self._leader
        for name, life in zip(self._followers, self._met["lives"], strict=True):
            record = await store.get(self._key(name))
            if record is None or record.value["life"] != life:
                return name
        return ""

    async def _life_of(self, store: Store, name: str) -> str:
        """Empty where it has not come to our meeting."""
        record = await store.get(self._key(name))
        has_come = record is not None and record.value["meeting"] == self._life
        return record.value["life"] if record and has_come else ""

    def _begin(self) -> HostPlace:
        # The wait for the others, whose hosts may have come late, is not taken off the engine's time.
        health_note.own.wait("starts its engine", self._timeout)
        count = 1 + len(self._followers)
        return HostPlace(self._rank, count, self._met["rendezvous"], self._met["meeting"])

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"
