"""A service's own registration: it takes a name in its run, says where it listens, and that it lives.

registration = await Registration.claim(store, run_id, ["rollout-0", "rollout-1"], timeout=60.0)
await registration.move("10.0.0.7:24711")
await registration.keep()              # returns when it shall end
await registration.end(code=0)
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from commands.launch.joining.service_records import (
    BEAT_SECONDS,
    ServiceRecord,
    Sightings,
    read_services,
)
from trimaran.errors import UnavailableError
from trimaran.run.lease import holder_name, is_gone
from trimaran.run.runs import (
    Goal,
    RunState,
    goal_key,
    launcher_lease,
    run_key,
    service_key,
    stop_key,
)
from trimaran.store import ConflictError, Store
from trimaran.wire import health_note

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
LIVES = 4
"""That a record names besides the last one: more than end between two looks of a launcher."""
ABANDONED_SECONDS = 30.0
"""Without a launcher, for a service whose run shall not go on."""


class NameTakenError(UnavailableError):
    """Another process has the name by now, or the run was deleted."""


class ServiceRegistration:
    """One life of a service, under a name that no other process of the run has."""

    def __init__(self, store: Store, run_id: str, record: ServiceRecord, version: int) -> None:
        self.record = record
        self._store, self._run_id, self._version = store, run_id, version
        self._key = service_key(run_id, record.name)

    @classmethod
    async def claim(
        cls, store: Store, run_id: str, names: Sequence[str], timeout: float
    ) -> ServiceRegistration:
        """The first of the names that is free. Raises UnavailableError where none is in time."""
        sightings, deadline = Sightings(), time.monotonic() + timeout
        while True:
            found = await read_services(store, run_id)
            sightings.note(found)
            claimed = await cls.try_claim(store, run_id, names, found, sightings)
            if claimed is not None:
                return claimed
            if time.monotonic() >= deadline:
                holders = ", ".join(f"{n} ({found[n][0].incarnation})" for n in names if n in found)
                raise UnavailableError(
                    f"run {run_id}: after {timeout:g} s others still have {holders}: end them, or"
                    " start this one under another index"
                )
            await asyncio.sleep(POLL_SECONDS)

    @classmethod
    async def try_claim(
        cls,
        store: Store,
        run_id: str,
        names: Sequence[str],
        found: Mapping[str, tuple[ServiceRecord, int]],
        sightings: Sightings,
    ) -> ServiceRegistration | None:
        """`found`: what `read_services` read; `sightings` has noted it. None where none is free."""
        mine = holder_name(os.getpid())

        def is_again(name: str) -> bool:
            """We had it ourselves, or a process of this place that is no more."""
            life = found[name][0].incarnation if name in found else ""
            return life == mine or (bool(life) and is_gone(life))

        def is_free(name: str) -> bool:
            return name not in found or found[name][0].has_ended or sightings.is_lost(name)

        again = [name for name in names if is_again(name)]
        for name in [*again, *(name for name in names if name not in again and is_free(name))]:
            former, version = found.get(name, (None, 0))
            record = _next_life(name, mine, former)
            try:
                version = await store.put(service_key(run_id, name), record.to_tree(), version)
            except ConflictError:
                continue  # another one was faster
            return cls(store, run_id, record, version)
        return None

    async def move(self, address: str) -> None:
        """Says where it listens, and that it writes regularly from now on."""
        await self._write(replace(self.record, address=address, is_up=True))

    async def keep(self) -> None:
        """Signs of life, until it is asked to end. A store that is away is waited for.

        Raises NameTakenError.
        """
        beaten_at = abandoned_at = time.monotonic()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                if await self._is_asked_to_end():
                    return
                now = time.monotonic()
                if now - beaten_at >= BEAT_SECONDS - POLL_SECONDS / 2:
                    await self._write(replace(self.record, doing=health_note.own.doing))
                    beaten_at = now
                    if not await self._is_abandoned():
                        abandoned_at = now
                    if now - abandoned_at >= ABANDONED_SECONDS:
                        logger.info("the run shall not go on, and has no launcher: ending")
                        return
            except NameTakenError:
                raise
            except UnavailableError as error:
                logger.warning("%s cannot say that it lives: %s", self.record.name, error)

    async def end(self, code: int, lines: Collection[str] = ()) -> None:
        """The last word. Raises UnavailableError and NameTakenError."""
        await self._write(replace(self.record, code=code, lines=tuple(lines)))

    async def _write(self, record: ServiceRecord) -> None:
        tree = record.to_tree()
        try:
            self._version = await self._store.put(self._key, tree, self._version)
        except ConflictError:
            # Whether a write that was not answered was done is not known.
            found = await self._store.get(self._key)
            if found is None or found.value["incarnation"] != record.incarnation:
                other = found.value["incarnation"] if found else "gone: the run was deleted"
                raise NameTakenError(
                    f"run {self._run_id}: {record.name} is {other} by now; this process ends"
                ) from None
            self._version = await self._store.put(self._key, tree, found.version)
        self.record = record

    async def _is_asked_to_end(self) -> bool:
        asked = await self._store.get(stop_key(self._run_id, self.record.name))
        return asked is not None and asked.value["incarnation"] == self.record.incarnation

    async def _is_abandoned(self) -> bool:
        if await self._store.holder(launcher_lease(self._run_id)):
            return False
        run = await self._store.get(run_key(self._run_id))
        goal = await self._store.get(goal_key(self._run_id))
        goes_on = run is not None and RunState(run.value["state"]).has_processes
        return not goes_on or (goal is not None and Goal(goal.value["goal"]) is not Goal.RUN)


def _next_life(name: str, incarnation: str, former: ServiceRecord | None) -> ServiceRecord:
    """With the address before, where it may listen again."""
    if former is None:
        return ServiceRecord(name, incarnation)
    if former.incarnation == incarnation:  # the same process, which has executed itself again
        return former
    return ServiceRecord(name, incarnation, former.address, former=_newest_lives(former, LIVES))


def _newest_lives(record: ServiceRecord, count: int) -> ServiceRecord | None:
    former = _newest_lives(record.former, count - 1) if record.former else None
    return replace(record, former=former) if count else None


async def find_addresses(
    store: Store, run_id: str, names: Collection[str], timeout: float
) -> dict[str, str]:
    """Where services listen, once all of them have registered and were heard.

    Raises UnavailableError naming who is missing after `timeout` seconds.
    """
    sightings, deadline = Sightings(), time.monotonic() + timeout
    while True:
        found = await read_services(store, run_id)
        sightings.note(found)
        here = {
            name: record.listens_at
            for name, (record, _) in found.items()
            if record.listens_at and sightings.is_beating(name)
        }
        missing = sorted(set(names) - here.keys())
        if not missing:
            return {name: here[name] for name in names}
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"run {run_id}: {', '.join(missing)} did not register within {timeout:g} s; see that"
                " each of them was started, and reaches the run's store"
            )
        await asyncio.sleep(POLL_SECONDS)
