"""Which replica generates the next group: the least loaded one that holds the live version."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from services.controller.reporting.busy_time import BusyTime
from trimaran.clients import RolloutClient, WeightSyncClient
from trimaran.errors import DeadlineError, UnavailableError, first_error
from trimaran.types import Replica, Routing, VersionId

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

POLL_SECONDS = 1.0


class DrainedError(UnavailableError):
    """The replica is about to end in order. That is no fault: its groups go on elsewhere."""


@dataclass(frozen=True, slots=True)
class ReplicaLease:
    """A replica for one group, from `Router.lease`."""

    name: str
    client: RolloutClient
    live: VersionId
    lost: asyncio.Future[UnavailableError]
    """Done once weight sync says that the replica is gone, or is drained."""

    async def unless_lost(self, call: Coroutine[Any, Any, Answer]) -> Answer:
        """The call's answer. Raises UnavailableError when the replica is lost before, DrainedError
        when it is drained.

        A frozen replica is so left behind after its last heartbeats, not after a stream's silence.
        """
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task, self.lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise self.lost.result()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})


class Router:
    """Leases replicas to groups, and follows which of them are routable.

    Example:
        async with router.watching(), router.lease(num_samples=8) as lease:
            group = await lease.unless_lost(lease.client.generate(...))
    """

    def __init__(
        self,
        weight_sync: WeightSyncClient,
        connect: Callable[[str], RolloutClient],
        max_concurrency: int,
        patience: float,
        on_lost: Callable[[str, str], None],
        on_back: Callable[[str], None],
        on_busy: Callable[[str, float, float], None],
        poll: float = POLL_SECONDS,
    ) -> None:
        """`max_concurrency`: completions in flight on a replica beyond which no group is added.

        `patience`: `outage_timeout`, for which a group waits while no replica is routable.
        `poll`: seconds between two questions to weight sync, who is routable.
        `on_lost(name, reason)`, `on_back(name)`: a replica left or came back.
        `on_busy(name, start, end)`: it had at least one group, in unix seconds.
        """
        self._weight_sync, self._connect = weight_sync, connect
        self._max_concurrency, self._patience, self._poll = max_concurrency, patience, poll
        self._on_lost, self._on_back, self._on_busy = on_lost, on_back, on_busy
        self._lost: set[str] = set()
        self._routing = Routing(None, ())
        self._routable: dict[str, Replica] = {}
        self._in_flight: defaultdict[str, int] = defaultdict(int)
        self._by_load: list[tuple[int, str]] = []
        """(completions in flight, name) of each routable replica, ascending."""
        self._activities: dict[str, BusyTime] = {}
        self._clients: dict[str, tuple[str, RolloutClient]] = {}
        self._leases: defaultdict[str, set[asyncio.Future[UnavailableError]]] = defaultdict(set)
        lock = asyncio.Lock()
        self._changed = asyncio.Condition(lock)
        self._choosy = asyncio.Condition(lock)
        """Here wait the few that avoid a replica: a free place may suit one and not the other."""
        # A report and a poll exclude each other: an older answer must not bring a replica back.
        self._control = asyncio.Lock()

    @asynccontextmanager
    async def lease(
        self, num_samples: int, avoid: Set[str] = frozenset(), prefer: str = ""
    ) -> AsyncIterator[ReplicaLease]:
        """The least loaded routable replica, one outside `avoid` where there is a choice. `prefer`: the
        replica that is taken where it is routable and has room: it has computed what the request begins with.

        Raises DeadlineError when none is routable for `patience` seconds.
        """
        waiting = self._choosy if avoid else self._changed
        async with waiting:
            replica, live = await self._wait_for_replica(avoid, waiting, prefer)
            self._add_load(replica.name, num_samples)
            self._wake()
        lost: asyncio.Future[UnavailableError] = asyncio.get_running_loop().create_future()
        self._leases[replica.name].add(lost)
        try:
            with self._activity(replica.name):
                yield ReplicaLease(replica.name, self._client(replica), live, lost)
        finally:
            self._leases[replica.name].discard(lost)
            self._add_load(replica.name, -num_samples)
            async with self._changed:
                self._wake()

    @property
    def live(self) -> VersionId | None:
        """The version that weight sync last said is."""
        return self._routing.live.version if self._routing.live else None

    async def update(self, routing: Routing) -> None:
        """Take over newer routing; an answer that was overtaken by a publication is dropped."""
        before = self._routing
        if before.live and (not routing.live or routing.live.version < before.live.version):
            return
        async with self._changed:
            self._routing = routing
            self._routable = {replica.name: replica for replica in routing.routable}
            self._by_load = sorted((self._in_flight[name], name) for name in self._routable)
            self._changed.notify_all()
            self._choosy.notify_all()
        # One that is only behind while a version is being published is not lost.
        for name, fault in sorted(routing.faults.items()):
            if name not in self._lost:
                self._lost.add(name)
                self._on_lost(name, fault)
        for name in sorted(self._lost & {replica.name for replica in routing.routable}):
            self._lost.remove(name)
            self._on_back(name)

    async def report(self, name: str, reason: str) -> None:
        """The replica could not be reached: it takes no more groups until it is proven again.

        Raises DrainedError when it has left in order since we last asked who is routable.
        """
        async with self._control:
            if name in self._routable:
                await self._ask(name)
            if name in self._routing.drained:
                raise DrainedError(f"{name}: drained")
            if name in self._routable:
                await self._exclude(name, reason)

    async def _ask(self, name: str) -> None:
        try:
            await self.update(await self._weight_sync.get_routing())
        except (UnavailableError, DeadlineError) as error:
            logger.warning("weight sync does not say whether %s is routable: %s", name, error)

    async def _exclude(self, name: str, reason: str) -> None:
        others = tuple(r for r in self._routing.routable if r.name != name)
        unroutable = {**self._routing.unroutable, name: reason}
        await self.update(replace(self._routing, routable=others, unroutable=unroutable))
        try:
            await self._weight_sync.report_replica(name, reason)
        except (UnavailableError, DeadlineError) as error:
            # It hears, or misses, the replica's heartbeats itself.
            logger.warning("%s could not be reported to weight sync: %s", name, error)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Inside, replicas that left come back once they are proven."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._watch())
                yield
                watch.cancel()
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll)
            try:
                async with self._control:
                    routing = await self._weight_sync.get_routing()
                    await self.update(routing)
                self._cut_lost(routing)
            except (UnavailableError, DeadlineError) as error:
                logger.warning("weight sync does not answer: %s", error)

    def _cut_lost(self, routing: Routing) -> None:
        ends = {name: UnavailableError(f"{name}: {why}") for name, why in routing.faults.items()}
        ends |= {name: DrainedError(f"{name}: drained") for name in routing.drained}
        for name, end in ends.items():
            for lost in self._leases[name]:
                if not lost.done():
                    lost.set_result(end)

    def cut_activities(self) -> None:
        """Close the open spans, so that no span on the timeline crosses a step."""
        for activity in self._activities.values():
            activity.cut()

    async def close(self) -> None:
        for _, client in self._clients.values():
            await client.close()

    async def _wait_for_replica(
        self, avoid: Set[str], waiting: asyncio.Condition, prefer: str
    ) -> tuple[Replica, VersionId]:
        deadline = time.monotonic() + self._patience
        while True:
            live, routable = self._routing.live, self._routing.routable
            if live and routable:
                deadline = time.monotonic() + self._patience
                if best := self._preferred(prefer, avoid) or self._least_loaded(avoid):
                    return best, live.version
            if time.monotonic() >= deadline:
                raise DeadlineError(
                    f"no rollout replica was routable for {self._patience:g} s (outage_timeout):"
                    f" {self._routing.describe_unroutable() or 'none has registered with weight sync'};"
                    " see the logs of the rollout processes"
                )
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await waiting.wait()
            except TimeoutError:
                continue

    def _least_loaded(self, avoid: Set[str]) -> Replica | None:
        """None while all are full. Ties fall to the first name, so that a run repeats itself."""
        others = (place for place in self._by_load if place[1] not in avoid)
        load, name = next(others, self._by_load[0])
        return self._routable[name] if load < self._max_concurrency else None

    def _preferred(self, name: str, avoid: Set[str]) -> Replica | None:
        has_room = name in self._routable and self._in_flight[name] < self._max_concurrency
        return self._routable[name] if has_room and name not in avoid else None

    def _add_load(self, name: str, num_samples: int) -> None:
        before = self._in_flight[name]
        self._in_flight[name] = after = before + num_samples
        if name in self._routable:
            del self._by_load[bisect_left(self._by_load, (before, name))]
            insort(self._by_load, (after, name))

    def _wake(self) -> None:
        """One who gets a replica wakes the next, while there is room."""
        self._choosy.notify_all()
        if self._by_load and self._least_loaded(frozenset()):
            self._changed.notify()

    def _activity(self, name: str) -> BusyTime:
        if name not in self._activities:
            self._activities[name] = BusyTime(lambda start, end: self._on_busy(name, start, end))
        return self._activities[name]

    def _client(self, replica: Replica) -> RolloutClient:
        address, client = self._clients.get(replica.name, ("", None))
        if client is None or address != replica.address:
            # A replaced client may still carry a broken stream; its channel dies with the process.
            client = self._connect(replica.address)
            self._clients[replica.name] = (replica.address, client)
        return client
