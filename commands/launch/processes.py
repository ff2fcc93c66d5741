"""The processes of a run: a process that dies is started again, with those it takes along.

A replica, the reward service, weight sync and the controller are started again alone. A trainer
rank takes the other ranks and the controller along: the ranks no longer agree, and the controller
brings them back to where the run stood, from its ledger. A rank that ends because another was
replaced (`LEFT_BEHIND`) takes the controller alone along. The run ends when a service says that its
input is wrong (exit code 2), when the controller has decided that the run has failed (1), and when
one that the run needs dies again and again.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from commands.launch.children import Child, Children
from commands.launch.local.local_children import LocalChildren
from commands.launch.restarts import Restarts
from commands.launch.service_process import Exit, ServiceDiedError, ServiceProcess, StopTimes
from trimaran.run.exits import BAD_INPUT, FAILED, LEFT_BEHIND, NOT_STARTED, TRY_AGAIN

DEFAULT_STOP_TIMES = StopTimes()
SETTLE_SECONDS = 1.0
"""After a death: time for the others that it takes down, so that the first cause is found."""
ACCIDENTS = (-signal.SIGKILL, -signal.SIGTERM, LEFT_BEHIND)
"""Also at the start."""

Note = Callable[[str], None]


class Processes:
    """Starts services, keeps them alive, and ends all of them.

    Example:
        async with Processes(run_services(config, folder, placement)) as processes:
            await processes.wait(print)
    """

    def __init__(
        self,
        services: Sequence[ServiceProcess],
        stop_times: StopTimes = DEFAULT_STOP_TIMES,
        restarts: Callable[[], Restarts] = Restarts,
        children: Children | None = None,
    ) -> None:
        """`restarts` makes what decides when one service is started again. `children`: what starts
        processes; those of this machine where it is not given."""
        self._services = {service.name: service for service in services}
        self._stop_times = stop_times
        self._children: Children = children or LocalChildren()
        self._restarts: defaultdict[str, Restarts] = defaultdict(restarts)
        self._left_behind: defaultdict[str, Restarts] = defaultdict(restarts)
        """The ends of a rank that was left behind, since a rank last died: another caused them."""
        self._given_up: set[str] = set()
        self._endings: list[asyncio.Task[None]] = []
        """Tasks that end what is left of replicas that were given up or have left."""
        self._revivals: dict[frozenset[str], asyncio.Task[None]] = {}
        """Each with the names that it starts again."""
        self.restarts = Counter[str]()
        """How often each was started again."""
        self.running = False
        """Set it once the run is under way: from then on any service may die."""
        self.takes_over = False
        """Set it where the run had a launcher before this one: services may miss others whose deaths
        were before our time."""

    @property
    def alive(self) -> dict[str, Child]:
        return dict(self._children.alive)

    @property
    def services(self) -> dict[str, ServiceProcess]:
        """All that belong to the run, also those that are dead at the moment or given up."""
        return dict(self._services)

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses of processes that are not given up, by name; empty where none is known."""
        alive = self._children.alive
        kept = self._services.keys() - self._given_up
        return {name: (alive.get(name) or self._services[name]).address for name in sorted(kept)}

    async def __aenter__(self) -> Processes:
        try:
            await self._children.open()
            for service in self._services.values():
                await self._children.start(service)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait(self, note: Note) -> None:
        """Returns when the leader ended well. Raises ServiceDiedError.

        `note` gets a line for each death that the run survives and for what follows.
        """
        while True:
            ended = await self._children.exits.get()
            if ended.service.leads and ended.code == 0:
                return
            if ended.left:
                await self._leave(ended, note)
                continue
            if ended.service.name in self._given_up:
                continue  # with another host of its replica, and must not bring that one back
            if ended.service.name in self._services and not self._revive(ended, note):
                raise ServiceDiedError(await self._first_cause(ended), self.running)

    def can_add(self, name: str) -> bool:
        """Whether it can be started now."""
        return self._children.can_start(name)

    async def add(self, service: ServiceProcess) -> None:
        """One more, from now on as if it had been there from the start. Raises OSError."""
        await self._children.start(service)
        self._services[service.name] = service
        self._given_up.discard(service.name)

    async def remove(self, name: str) -> None:
        """Ends it in order, and then its further hosts, on which it computes until its groups are taken
        elsewhere; its end is no death."""
        beside = self._hosts_beside(self._services[name])
        for one in (name, *beside):
            del self._services[one]
        await self._cancel_revivals([name, *beside])
        await self._children.end([name], self._stop_times.drained)
        await self._children.end(beside, self._stop_times.running)

    def progressed(self) -> None:
        """The run has got further: deaths before do not count against those that it needed."""
        for name, restarts in (*self._restarts.items(), *self._left_behind.items()):
            if name in self._services and not self._services[name].expendable:
                restarts.forgive()

    async def stop(self) -> None:
        """Ends every process: SIGTERM, a deadline, SIGKILL to what is left of its group."""
        await self._cancel_revivals(self._services)  # nothing may start behind our back
        await _cancel(self._endings)
        leaders = [service.name for service in self._services.values() if service.leads]
        times = self._stop_times
        try:
            await self._children.end(leaders, times.leader)
            await self._children.end(
                list(self._children.alive), times.running if self.running else times.loading
            )
        finally:
            await self._children.close()

    def kill(self, name: str) -> None:
        """Ends one at once, as far as what starts it can; it is then dead as any other."""
        self._children.kill(name)

    def kill_all(self) -> None:
        """The same with all that are left."""
        self._children.kill_all()

    async def _leave(self, ended: Exit, note: Note) -> None:
        """A replica on several hosts leaves as a whole: each of its processes waits for the others."""
        name = ended.service.name
        if name not in self._services:
            return
        beside = self._hosts_beside(ended.service)
        for one in (name, *beside):
            del self._services[one]
        await self._cancel_revivals([name, *beside])
        if beside:
            ending = self._children.end(beside, self._stop_times.loading)
            self._endings.append(asyncio.create_task(ending))
        others = f" with {', '.join(beside)}" if beside else ""
        note(f"{name} has left{others} ({ended.how}); groups under way go on elsewhere")

    def _revive(self, ended: Exit, note: Note) -> bool:
        """False when the run cannot outlive this death."""
        service = ended.service
        has_decided = ended.code == BAD_INPUT or (service.leads and ended.code == FAILED)
        # At the start only a kill is an accident, and who did not find the one that was killed; anything
        # else would happen again.
        has_lost = bool(self._restarts or self._left_behind) or self.takes_over
        is_accident = ended.code in ACCIDENTS or (ended.code == TRY_AGAIN and has_lost)
        if has_decided or not (self.running or is_accident):
            return False
        restarts = self._counts_against(ended)
        pause = restarts.next_pause(ended.lived_seconds)
        if pause is not None:
            names = [service.name, *sorted(self._taken_along(ended))]
            others = f" with {', '.join(names[1:])}" if names[1:] else ""
            note(
                f"{service.name} died ({ended.how}); the run starts it again{others} in {pause:g} s"
            )
            self._begin_revival(frozenset(names), pause, note)
            return True
        beside = self._hosts_beside(service)
        gone = {service.name, *beside}
        others = (s for s in self._services.values() if s.expendable and s.name not in gone)
        if not service.expendable or not any(s.name in self._children.alive for s in others):
            return False
        self._given_up |= gone
        self._endings.append(asyncio.create_task(self._end_given_up(beside)))
        note(
            f"{service.name} died ({ended.how}), {restarts.num_in_a_row} times in a row; it is not"
            f" started again and the run goes on without it; see {ended.log}"
        )
        return True

    async def _end_given_up(self, names: Sequence[str]) -> None:
        """Also what is about to be started again."""
        await self._cancel_revivals(names)
        await self._children.end(names, self._stop_times.loading)

    def _hosts_beside(self, service: ServiceProcess) -> list[str]:
        """The other processes of a replica that stands on several hosts: it is there as a whole, or not
        at all."""
        return sorted(service.takes_along & self._services.keys()) if service.expendable else []

    def _counts_against(self, ended: Exit) -> Restarts:
        """A rank that was left behind keeps its own restarts. It may be left behind as often once more
        after each death of a rank; as those are bounded, so are these."""
        service = ended.service
        if ended.code == LEFT_BEHIND:
            return self._left_behind[service.name]
        for name in service.takes_along:
            self._left_behind.pop(name, None)
        return self._restarts[service.name]

    def _taken_along(self, ended: Exit) -> set[str]:
        """Whom this death ends as well.

        A rank that was left behind (services/trainer/meeting.py) ends no other rank: the rank that was started
        again waits for it, and who has to go as well sees so for itself. If it took them along, there
        might be no end: on one machine and on Ray the dead are gone before anybody is started, but an
        engine starts a rank again at once, while a rank 0 that was asked to end may take
        `commands.cli.serve.serve.STOP_SECONDS` for it. The rank may then meet that one and be left behind
        once more; it must not cost the next rank 0 its life. Each announcement of a rank 0 ends each
        other rank at most once, and such an end alone makes no new announcement.

        The controller has worked with the ranks before, whose newest steps are gone.
        """
        ends_ranks = ended.code != LEFT_BEHIND
        names = ended.service.takes_along & self._services.keys()
        return {name for name in names if ends_ranks or self._services[name].leads}

    def _begin_revival(self, names: frozenset[str], pause: float, note: Note) -> None:
        """What is to be started already joins this one."""
        earlier = {key: task for key, task in self._revivals.items() if key & names}
        for key in earlier:
            del self._revivals[key]
        names = names.union(*earlier)
        task = asyncio.create_task(self._start_again(names, pause, note, list(earlier.values())))
        self._revivals[names] = task
        task.add_done_callback(lambda _: self._revivals.pop(names, None))

    async def _start_again(
        self,
        names: frozenset[str],
        pause: float,
        note: Note,
        earlier: Sequence[asyncio.Task[None]],
    ) -> None:
        await _cancel(earlier)
        in_order = [service for service in self._services.values() if service.name in names]
        leaders = [service.name for service in in_order if service.leads]
        await self._children.end(leaders, self._stop_times.leader)
        await self._children.end(names, self._stop_times.loading)
        await asyncio.sleep(pause)
        for service in in_order:
            try:
                await self._children.start(service)
            except OSError as error:
                note(f"{service.name} cannot be started again ({error})")
                self._children.exits.put_nowait(Exit(service, NOT_STARTED, 0.0))
            else:
                self.restarts[service.name] += 1
                note(f"{service.name} is started again")

    async def _cancel_revivals(self, names: Iterable[str]) -> None:
        wanted = set(names)
        await _cancel([task for key, task in self._revivals.items() if key & wanted])

    async def _first_cause(self, first: Exit) -> Exit:
        """The death that caused those close to it: wrong input comes first, the leader last."""
        await asyncio.sleep(SETTLE_SECONDS)
        exits = [first]
        while not self._children.exits.empty():
            exits.append(self._children.exits.get_nowait())
        return min(exits, key=lambda ended: (ended.code != BAD_INPUT, ended.service.leads))


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
