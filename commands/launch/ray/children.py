"""`commands.launch.children.Children` on the nodes of a Ray cluster.

A small detached actor beside each service process starts it and ends with it (`supervisor.py`).
The actor is asked for a report every half second; its log comes along. Ray restarts nothing:
`Processes` decides that, as it does on one machine, and each life has an actor of its own.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, ParamSpec, TypeVar

from commands.launch.joining.service_records import ServiceRecord, end_life, read_services
from commands.launch.ray.groups import Groups, PlacementGroup, Wish
from commands.launch.ray.naming import own_prefix
from commands.launch.ray.supervisor import LAPSE_SECONDS, Order, Supervisor, SupervisorReport
from commands.launch.service_process import Exit, ServiceProcess, StopTimes
from trimaran.config import RunConfig
from trimaran.errors import DeadlineError, TrimaranError, UnavailableError
from trimaran.host.call_thread import CallThread
from trimaran.host.system_errors import is_of_the_machine
from trimaran.run.context import CONTEXT_NAME, RunContext
from trimaran.run.environment import part_of, process_name
from trimaran.run.exits import BAD_INPUT, TRY_AGAIN
from trimaran.run.ray.cluster import ActorLostError, ActorSilentError, Cluster, Node, Where
from trimaran.run.ray.placing import (
    ROLLING,
    beside,
    kind_of,
    node_of,
    part_in,
    rank_in,
    replica_bundles,
    replica_place,
    trainer_bundles,
)
from trimaran.run.runs import replicas_key
from trimaran.store import Store, is_shared
from trimaran.trust.access import TOKEN_NAME

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")

POLL_SECONDS = 0.5
ASK_SECONDS = 5.0
"""For one answer of an actor."""
PLACE_SECONDS = 300.0
"""For Ray to find a node with room, after which the start counts as failed."""
TELL_SECONDS = 20.0
"""Between two notes that a process waits for a place."""
HEAD_SECONDS = 30.0
"""For Ray's head to answer."""
END_SECONDS = 10.0
"""For an actor to end what is left of its service."""
DRAINED_SECONDS = StopTimes().drained
ONE_HOST = (
    "store: {url} is a file of one host, and this node does not see the run's folder; give the run a"
    " store that every node reaches: --store redis://HOST:PORT/0"
)


@dataclass(slots=True, eq=False)
class RayChild:
    """A service's process that lives, or waits for a place."""

    service: ServiceProcess
    log_start: int
    records: Mapping[str, ServiceRecord]
    """What the run's services have said of themselves."""
    former: str = ""
    """The incarnation that had the name before."""
    incarnation: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    began: float = field(default_factory=time.monotonic)
    actor: Any = None
    node: str = ""
    """The id of that on which it is, or shall be."""
    is_placed: bool = False
    report: SupervisorReport | None = None
    group: PlacementGroup | None = None
    """The placement group in which it has its place."""
    is_ended: bool = False
    """It was asked to end: its end is no death."""
    is_over: bool = False
    cause: str = ""
    """Why it was killed here."""

    @property
    def address(self) -> str:
        record = self.records.get(self.service.name)
        return record.listens_at if record and record.incarnation != self.former else ""

    def is_stopped(self) -> bool:
        return self.report is not None and self.report.is_stopped


class RayChildren:
    """A run's processes as actors with a child each.

    Example:
        children = RayChildren(Cluster("auto"), run, config, store)
        await children.open()
        await children.start(service)
        ended = await children.exits.get()
    """

    def __init__(
        self,
        cluster: Cluster,
        run: RunContext,
        config: RunConfig,
        store: Store,
        note: Callable[[str], None] = logger.info,
        lapse_seconds: float = LAPSE_SECONDS,
        ask_seconds: float = ASK_SECONDS,
        place_seconds: float = PLACE_SECONDS,
        tell_seconds: float = TELL_SECONDS,
    ) -> None:
        """The environment of a `ServiceProcess` is what its node does not have itself."""
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self.alive: dict[str, RayChild] = {}
        self._cluster, self._run, self._config = cluster, run, config
        self._store, self._note = store, note
        self._records: dict[str, ServiceRecord] = {}
        self._lapse_seconds, self._ask_seconds = lapse_seconds, ask_seconds
        self._place_seconds, self._tell_seconds = place_seconds, tell_seconds
        self._head = CallThread("Ray's head")
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._nodes: list[Node] = []
        self._own_address = ""
        self._prefix = ""
        """Begins all names that the run has on the cluster; empty until it is known."""
        self._groups = Groups(cluster, self._ask)
        self._surveying: asyncio.Task[None] | None = None
        self._mark = f"launcher-{uuid.uuid4().hex[:12]}"
        self._is_closed = False

    async def open(self) -> None:
        """Ends what an earlier launcher of the run has left. Raises InputError and
        UnavailableError, and StoreError for the run's store."""
        await self._ask(self._cluster.connect)
        self._nodes = await self._ask(self._cluster.nodes)
        own = self._cluster.own_node
        self._own_address = next((n.address for n in self._nodes if n.node_id == own), "")
        (self._run.folder / self._mark).touch()
        self._prefix = await own_prefix(self._store, self._run.run_id)
        await self._clear()
        await self._read_records()
        await self._bury(*self._records)
        self._surveying = asyncio.create_task(self._survey())

    async def start(self, service: ServiceProcess) -> None:
        log_start = service.log.stat().st_size if service.log.exists() else 0
        service.log.touch()
        record = self._records.get(service.name)
        former = record.incarnation if record else ""
        child = RayChild(service, log_start, self._records, former)
        self.alive[service.name] = child
        self._lives[service.name] = asyncio.create_task(self._life(child))

    async def end(self, names: Iterable[str], seconds: float) -> None:
        children = [self.alive[name] for name in names if name in self.alive]
        await asyncio.gather(*(self._end(child, seconds) for child in children))

    def can_start(self, name: str) -> bool:
        return True

    def kill(self, name: str) -> None:
        child = self.alive.get(name)
        if child is None:
            return
        if not child.is_placed:
            self._lives[name].cancel()
        else:
            self._cluster.call(child.actor, "kill")

    def kill_all(self) -> None:
        for name in list(self.alive):
            self.kill(name)

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._surveying:
            self._surveying.cancel()
        for child in self.alive.values():
            child.is_ended = True
        lives = list(self._lives.values())
        for life in lives:
            life.cancel()
        if lives:
            await asyncio.wait(lives, timeout=2 * END_SECONDS)
        if self._prefix:  # without one it would mean every run of the cluster
            await self._try(self._cluster.release, self._prefix)
        await self._try(self._cluster.disconnect)
        (self._run.folder / self._mark).unlink(missing_ok=True)

    async def _end(self, child: RayChild, seconds: float) -> None:
        child.is_ended = True
        life = self._lives.get(child.service.name)
        if life is None:
            return
        if not child.is_placed:
            life.cancel()
        else:
            with suppress(ActorLostError, ActorSilentError, TimeoutError):
                await _answer(self._cluster.call(child.actor, "end", seconds), self._ask_seconds)
        _, pending = await asyncio.wait([life], timeout=seconds + self._ask_seconds)
        if pending:
            life.cancel()
            await asyncio.wait(pending, timeout=2 * END_SECONDS)

    async def _life(self, child: RayChild) -> None:
        """From the search for a place to the end of its actor."""
        name = child.service.name
        ended = Exit(child.service, -signal.SIGKILL, 0.0, child.log_start, child.cause)
        try:
            ended = await self._live(child)
        except TrimaranError as error:
            ended = self._failed(child, TRY_AGAIN, str(error))
        except OSError as error:
            code = TRY_AGAIN if is_of_the_machine(error) else BAD_INPUT
            ended = self._failed(child, code, str(error))
        finally:
            child.is_over = True
            dispose = asyncio.create_task(self._dispose(child))
            while not dispose.done():  # also where this is cancelled: nothing stays behind
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([dispose])
            if self.alive.get(name) is child:
                del self.alive[name], self._lives[name]
            if not child.is_ended:
                self.exits.put_nowait(ended)

    async def _live(self, child: RayChild) -> Exit:
        service = child.service
        where = await self._find_where(child)
        title = f"{self._prefix}{service.name}/{child.incarnation}"

        def make() -> None:
            actor = self._cluster.make(Supervisor, title, where, self._lapse_seconds)
            if child.is_over:  # it took too long, and no process knows of it
                self._cluster.kill(actor)
            child.actor = actor

        await self._ask(make)
        order = asdict(self._order(service))
        try:
            node = await self._placed(child, where)
            if node is None:
                why = f"no node has had room for {_words(where)} for {self._place_seconds:g} s"
                return self._failed(child, TRY_AGAIN, why)
            child.node, child.is_placed, child.began = node, True, time.monotonic()
            await _answer(self._cluster.call(child.actor, "start", order), self._ask_seconds)
        except TimeoutError:
            why = f"its actor has not answered for {self._ask_seconds:g} s"
            return self._failed(child, TRY_AGAIN, why)
        except (ActorLostError, ActorSilentError):
            return self._lost(child)
        return await self._follow(child)

    async def _follow(self, child: RayChild) -> Exit:
        position, heard = -1, time.monotonic()
        while True:
            try:
                call = self._cluster.call(child.actor, "report", position)
                report = SupervisorReport(**await _answer(call, self._ask_seconds))
            except ActorLostError:
                return self._lost(child)
            except (ActorSilentError, TimeoutError):
                if time.monotonic() - heard > self._lapse_seconds + self._ask_seconds:
                    return self._lost(child)  # by now it has ended itself
                await asyncio.sleep(POLL_SECONDS)
                continue
            child.report, heard, position = report, time.monotonic(), report.position
            if report.log:
                with child.service.log.open("ab") as log:
                    log.write(report.log)
                continue
            if not report.pid:
                code = report.code if report.code is not None else -signal.SIGTERM
                lived = time.monotonic() - child.began
                return Exit(child.service, code, lived, child.log_start, child.cause)
            await asyncio.sleep(POLL_SECONDS)

    async def _placed(self, child: RayChild, where: Where) -> str | None:
        """The id of its node; None when there is none in time."""
        placing = asyncio.wrap_future(self._cluster.node_of(child.actor))
        waits_until = time.monotonic() + self._place_seconds
        try:
            while time.monotonic() < waits_until:
                if (await asyncio.wait([placing], timeout=self._tell_seconds))[0]:
                    return placing.result()
                room = _words(where)
                self._note(f"{child.service.name} waits for a node with room for {room}")
            return None
        finally:
            placing.cancel()

    async def _find_where(self, child: RayChild) -> Where:
        service = child.service
        if service.kind == "trainer":
            child.group = await self._groups.hold(f"{self._prefix}trainer/", self._trainer_wish)
            handle, count = child.group.handle, child.group.num_bundles
            return rank_in(self._config, service.index, handle, count, self._nodes)
        if service.kind not in ROLLING:  # beside the launcher, whose folder others read
            return beside(self._own_address, self._nodes)
        replica, part = part_of(self._config, service.kind, service.index)
        if self._config.rollout.hosts > 1:
            prefix = f"{self._prefix}{process_name('rollout', replica)}/"
            child.group = await self._groups.hold(prefix, lambda: self._replica_wish(replica))
            return part_in(self._config, part, child.group.handle, self._nodes)
        wanted = node_of(await self._managers_wish(), replica)
        others = (c for c in self.alive.values() if c.service.kind in ROLLING and c is not child)
        where = replica_place(self._config, self._nodes, Counter(c.node for c in others), wanted)
        child.node = where.node_id  # until it is known
        return where

    async def _trainer_wish(self) -> Wish:
        self._nodes = await self._ask(self._cluster.nodes)
        bundles = trainer_bundles(self._config, self._nodes)
        return Wish(bundles, self._config.trainer.labels)

    async def _replica_wish(self, replica: int) -> Wish:
        self._nodes = await self._ask(self._cluster.nodes)
        wish = await self._managers_wish()
        bundles = replica_bundles(self._config, self._nodes, wish, replica)
        return Wish(bundles, self._config.rollout.labels, is_spread=True)

    async def _managers_wish(self) -> Mapping[str, Any]:
        record = await self._store.get(replicas_key(self._run.run_id))
        return record.value if record else {}

    def _order(self, service: ServiceProcess) -> Order:
        run, kind = self._run, kind_of(self._config, service.kind, self._nodes)
        own = not is_shared(run.store_url)
        return Order(
            service.name,
            service.command[1:],  # the node has its own Python
            str(run.folder),
            {
                name: (run.folder / name).read_text(encoding="utf-8")
                for name in (CONTEXT_NAME, TOKEN_NAME)
                if (run.folder / name).exists()
            },
            dict(service.environment),
            kind,
            self._mark,
            ONE_HOST.format(url=run.store_url) if own else "",
        )

    def _failed(self, child: RayChild, code: int, why: str) -> Exit:
        lived = time.monotonic() - child.began if child.is_placed else 0.0
        return Exit(child.service, code, lived, child.log_start, why, (f"error: {why}",))

    def _lost(self, child: RayChild) -> Exit:
        """Its actor is dead: its node went down, or it was killed."""
        self._groups.give_up(child.group)  # its node may be gone
        address = next((n.address for n in self._nodes if n.node_id == child.node), "")
        why = child.cause or (f"its actor on {address} is gone" if address else "its node is gone")
        lived = time.monotonic() - child.began
        return Exit(child.service, -signal.SIGKILL, lived, child.log_start, why)

    async def _dispose(self, child: RayChild) -> None:
        if child.actor is not None:
            await self._end_actor(child.actor, child.is_placed)
        await self._release_group(child)
        await self._bury(child.service.name)

    async def _release_group(self, child: RayChild) -> None:
        """A replica's, with its last process: it may not come back. The trainer's ranks always do."""
        group = child.group
        others = (c for c in self.alive.values() if c.group is group and not c.is_over)
        if group is not None and child.service.kind in ROLLING and not any(others):
            with suppress(UnavailableError, DeadlineError):  # released with the run's others
                await self._groups.release(group)

    async def _bury(self, *names: str) -> None:
        """Ray counts an actor as dead whose node it does not hear, and its service may live on there:
        the run must not go on with it and with its successor."""
        try:
            for name in names:
                await end_life(self._store, self._run.run_id, name, self._mark)
        except UnavailableError as error:
            logger.warning("%s may live on where it is not reached: %s", ", ".join(names), error)

    async def _survey(self) -> None:
        """Nodes that come and go; processes on those that leave are moved."""
        while True:
            # While the head is away nothing is known to have changed.
            with suppress(UnavailableError, DeadlineError):
                self._nodes = await self._ask(self._cluster.nodes)
            await self._read_records()
            leaving = {node.node_id: node.address for node in self._nodes if node.is_leaving}
            for child in list(self.alive.values()):
                if child.node in leaving and child.is_placed and not child.cause:
                    self._move(child, leaving[child.node])
            await asyncio.sleep(2 * POLL_SECONDS)

    async def _read_records(self) -> None:
        try:
            found = await read_services(self._store, self._run.run_id)
        except UnavailableError as error:
            logger.warning("the run's services cannot be seen: %s", error)
        else:
            self._records.update({name: record for name, (record, _) in found.items()})

    def _move(self, child: RayChild, address: str) -> None:
        """Ends it in order; `Processes` starts it again elsewhere."""
        child.cause = f"its node {address} leaves"
        self._groups.give_up(child.group)
        self._note(f"{child.service.name} moves: {child.cause}")
        self._cluster.call(child.actor, "end", DRAINED_SECONDS)

    async def _clear(self) -> None:
        """What an earlier launcher of this run has left behind."""
        actors = await self._ask(self._cluster.find, self._prefix)
        await asyncio.gather(*map(self._end_actor, actors.values()))
        await self._ask(self._cluster.release, self._prefix)

    async def _end_actor(self, actor: Any, has_place: bool = True) -> None:
        if has_place:
            with suppress(ActorLostError, ActorSilentError, TimeoutError):
                await _answer(self._cluster.call(actor, "close"), END_SECONDS)
        await self._try(self._cluster.kill, actor)

    async def _ask(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """What may hang while the head is away. Raises UnavailableError and DeadlineError."""
        return await self._head.wait(lambda: call(*arguments, **named), HEAD_SECONDS)

    async def _try(self, call: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> None:
        """Where it fails, actors end by themselves, as they are not asked for."""
        with suppress(UnavailableError, DeadlineError):
            await self._ask(call, *arguments, **named)


async def _answer(call: Future[Any], seconds: float) -> Any:
    return await asyncio.wait_for(asyncio.wrap_future(call), seconds)


def _words(where: Where) -> str:
    taken = ", ".join(f"{name} {amount:g}" for name, amount in where.resources.items())
    labels = "".join(f", {name}={value}" for name, value in where.labels.items())
    return f"{taken or 'nothing'}{labels}"
