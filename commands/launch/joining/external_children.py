"""Services that another program starts: a container engine, a cluster, a shell loop.

Ours waits until each has registered in the run's store, and takes a registration that ends for a
death. To end one is to ask it, by a record that it reads; its engine then starts it again, for this
run or the next. Nothing here starts or kills a process.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any

from commands.launch.joining.service_records import (
    LOST_SECONDS,
    STARTING_SECONDS,
    ServiceRecord,
    Sightings,
    read_services,
)
from commands.launch.service_process import Exit, ServiceProcess
from trimaran.errors import UnavailableError
from trimaran.run.exits import NOT_STARTED
from trimaran.run.runs import stop_key
from trimaran.store import Store

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
CLOSE_SECONDS = 5.0
"""For the store to take the last requests to end."""


@dataclass(frozen=True, slots=True)
class ExternalChild:
    """A service that is awaited, or registered."""

    service: ServiceProcess
    began: float
    """When it registered, as far as we saw; until then, since when it is awaited."""
    incarnation: str = ""
    address: str = ""

    def is_stopped(self) -> bool:
        return False


class ExternalChildren:
    """`commands.launch.children.Children` of processes that register.

    Example:
        children = ExternalChildren(store, run_id, config.start_timeout)
        await children.open()
        await children.start(service)                   # from now on it is awaited
        children.alive[service.name].address            # once it has registered
    """

    def __init__(
        self, store: Store, run_id: str, start_timeout: float, look: float = LOOK_SECONDS
    ) -> None:
        """`start_timeout`: seconds for a service to register after it is awaited."""
        self.alive: dict[str, ExternalChild] = {}
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self._store, self._run_id = store, run_id
        self._start_timeout, self._look = start_timeout, look
        self._found: dict[str, ServiceRecord] = {}
        """As last read."""
        self._sightings = Sightings()
        self._refused: set[str] = set()
        """Incarnations that are not taken in again: `end` was asked for them, or they were lost."""
        self._asked: set[str] = set()
        """Incarnations that were asked to end."""
        self._met: set[str] = set()
        """Names that have registered once."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        self._begin(self._watch())

    async def start(self, service: ServiceProcess) -> None:
        self.alive[service.name] = ExternalChild(service, time.monotonic())

    def can_start(self, name: str) -> bool:
        """It has registered already: a replica comes when its engine has started it."""
        record = self._found.get(name)
        return record is not None and self._is_here(record)

    async def end(self, names: Iterable[str], seconds: float) -> None:
        """Who has not ended after `seconds` is left to its engine, and is not taken in again."""
        ending = [self.alive.pop(name) for name in names if name in self.alive]
        lives = {child.service.name: child.incarnation for child in ending if child.incarnation}
        self._refused.update(lives.values())
        deadline = time.monotonic() + seconds
        try:
            async with asyncio.timeout(seconds):
                if len(lives) < len(ending):
                    lives |= await self._find_unheard(ending)
                    self._refused.update(lives.values())
                await self._ask(lives)
        except (TimeoutError, UnavailableError) as error:
            logger.warning("%s cannot be asked to end: %s", ", ".join(lives), error)
        while self._still_here(lives) and time.monotonic() < deadline:  # noqa: ASYNC110 - it is read
            await asyncio.sleep(self._look)
        for name in self._still_here(lives):
            logger.warning("%s has not ended in %g s; its engine's probe has to", name, seconds)

    def kill(self, name: str) -> None:
        """Asks it to end: it is its engine that kills what is frozen."""
        if (child := self.alive.get(name)) and child.incarnation:
            self._begin(self._ask({name: child.incarnation}))

    def kill_all(self) -> None:
        for name in self.alive:
            self.kill(name)

    async def close(self) -> None:
        """Asks everybody who has registered to end, also those that the run has not taken in."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.alive.clear()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                found = await read_services(self._store, self._run_id)
                here = [record for record, _ in found.values() if not record.has_ended]
                await self._ask({record.name: record.incarnation for record in here})
        except (TimeoutError, UnavailableError) as error:
            logger.warning("services cannot be asked to end: %s", error)

    async def _find_unheard(self, children: Iterable[ExternalChild]) -> dict[str, str]:
        """Incarnations of those that have registered and were not taken in yet: a launcher that has
        just taken a run over has heard none."""
        await self._read()
        awaited = {child.service.name for child in children if not child.incarnation}
        return {
            name: record.incarnation
            for name, record in self._found.items()
            if name in awaited and not record.has_ended and record.incarnation not in self._refused
        }

    async def _ask(self, lives: dict[str, str]) -> None:
        for name, incarnation in lives.items():
            key = stop_key(self._run_id, name)
            await self._store.put(key, {"incarnation": incarnation})
            self._asked.add(incarnation)

    async def _ask_refused(self) -> None:
        """Who was taken for dead and is heard again keeps its name from the one after it."""
        back = {
            name: record.incarnation
            for name, record in self._found.items()
            if record.incarnation in self._refused - self._asked
            and not record.has_ended
            and self._sightings.is_beating(name)
        }
        await self._ask(back)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            logger.warning("a service cannot be asked to end: %s", error)

    async def _watch(self) -> None:
        while True:
            try:
                await self._read()
                for child in list(self.alive.values()):
                    self._judge(child)
                await self._ask_refused()
            except UnavailableError as error:
                logger.warning("the run's services cannot be seen or asked: %s", error)
            await asyncio.sleep(self._look)

    async def _read(self) -> None:
        found = await read_services(self._store, self._run_id)
        self._sightings.note(found)
        self._found = {name: record for name, (record, _) in found.items()}

    def _judge(self, child: ExternalChild) -> None:
        name = child.service.name
        record = self._found.get(name)
        if not child.incarnation:
            if record is not None and self._is_here(record):
                life = record.incarnation
                self._met.add(name)
                self.alive[name] = replace(
                    child, incarnation=life, began=time.monotonic(), address=record.listens_at
                )
            elif time.monotonic() - child.began > self._start_timeout:
                self._lose(child, self._never_came(child))
            return
        own = record.find(child.incarnation) if record else None
        if own is None or (own is not record and not own.has_ended):
            self._lose(child, self._lost(child, "its engine has started another in its place"))
        elif own.has_ended:
            self._lose(child, _exit_of(child, own))
        elif self._sightings.is_lost(name):
            seconds = LOST_SECONDS if own.is_up else STARTING_SECONDS
            self._lose(child, self._lost(child, f"it was not heard for {seconds:g} s"))
        elif own.listens_at != child.address:
            self.alive[name] = replace(child, address=own.listens_at)

    def _is_here(self, record: ServiceRecord) -> bool:
        return (
            not record.has_ended
            and record.incarnation not in self._refused
            and self._sightings.is_beating(record.name)
        )

    def _still_here(self, lives: dict[str, str]) -> list[str]:
        return [
            name
            for name, life in lives.items()
            if (record := self._found.get(name)) is not None
            and record.incarnation == life
            and not record.has_ended
            and not self._sightings.is_lost(name)
        ]

    def _never_came(self, child: ExternalChild) -> Exit:
        """A replica that does not come back is out of the run until it does, however long it takes."""
        why = f"it has not registered for {self._start_timeout:g} s; its engine starts it"
        left = child.service.expendable and child.service.name in self._met
        return Exit(child.service, NOT_STARTED, 0.0, why=why, lines=(), left=left)

    def _lost(self, child: ExternalChild, why: str) -> Exit:
        """As if it was killed: its exit code is not known."""
        lived = time.monotonic() - child.began
        return Exit(child.service, -signal.SIGKILL, lived, why=why, lines=())

    def _lose(self, child: ExternalChild, ended: Exit) -> None:
        del self.alive[child.service.name]
        if child.incarnation:
            self._refused.add(child.incarnation)
        self.exits.put_nowait(ended)


def _exit_of(child: ExternalChild, record: ServiceRecord) -> Exit:
    assert record.code is not None
    lived = time.monotonic() - child.began
    # Its engine takes a replica away, or to another host: both are in order.
    left = child.service.expendable and record.code == -signal.SIGTERM
    why = "its engine has taken it away" if left else ""
    return Exit(child.service, record.code, lived, why=why, lines=record.lines, left=left)
