"""The manager's loop: look at each run, do what `decide` says, and share the devices out.

It is level-triggered: every half second, and when something was changed, it compares what is wanted
with what is there. A manager that is started again therefore needs no hand-over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from services.manager.calls import ServiceCalls
from services.manager.reconcile import TIMES, Action, ObservedRun, Times, decide, ended
from services.manager.records import LEASE, Managed, Records
from services.manager.run_data.folders import (
    LOCAL,
    Deployment,
    prepare,
    remove_folder,
    write_run_files,
)
from services.manager.run_data.log_files import last_words
from services.manager.run_data.run_links import RunLinks
from services.manager.run_data.run_stores import RunStores
from services.manager.scheduling.pools import Grant, Pool
from services.manager.scheduling.scheduler import (
    POLICY,
    DeviceHolding,
    Schedule,
    Scheduler,
    SchedulingPolicy,
)
from trimaran.errors import (
    InputError,
    NotFoundError,
    StaleEpochError,
    TrimaranError,
    UnavailableError,
)
from trimaran.run.context import RunContext
from trimaran.run.environment import plugin_variables
from trimaran.run.launchers import Launcher, Presence
from trimaran.run.lease import is_elsewhere
from trimaran.run.runs import EventKind, Goal, RunState
from trimaran.store import ConflictError, Lease, StoreError, StoreFullError, is_shared
from trimaran.telemetry import scope

logger = logging.getLogger(__name__)

PREPARED_SECONDS = 10.0
LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0
ROOM_SECONDS = 2.0
"""For a write that shows whether a run's store has room."""
MOST_FAILURES = 20
"""Failed looks at one run in a row, after which the log says it only now and then."""


class Manager:
    """Keeps every run going. One at a time: it holds the lease by which `records` were loaded.

    Example: await Manager(records, lease, stores, LocalLauncher(os.environ), pools).run()
    """

    def __init__(
        self,
        records: Records,
        lease: Lease,
        stores: RunStores,
        launcher: Launcher,
        pools: Sequence[Pool],
        policy: SchedulingPolicy = POLICY,
        times: Times = TIMES,
        secrets: Mapping[str, str] = MappingProxyType({}),
        deployment: Deployment = LOCAL,
    ) -> None:
        """`secrets`: environment variables with tokens of reward plugins. A run gets those that it
        names."""
        self.records, self.stores, self.pools = records, stores, pools
        self.links = RunLinks(stores)
        self.troubles: dict[str, str] = {}
        """Why a run's store, or ours, could not be used, until its launcher has a lease again."""
        self._lease, self._launcher = lease, launcher
        self._policy, self._times = policy, times
        self._scheduler = Scheduler(pools, policy, deployment.launcher == "ray")
        self._secrets, self._deployment = secrets, deployment
        self._calls = ServiceCalls(records.store) if deployment.launcher == "external" else None
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._prepared: set[str] = set()
        self._failures: dict[str, int] = {}
        self._lapsed: dict[str, float] = {}
        """Monotonic seconds since which a run's launcher has no lease, and its store says so."""
        self._ending: dict[str, float] = {}
        """Monotonic seconds since which a run's launcher is gone and its processes are not, or since
        which these were killed."""
        self._not_started: dict[str, str] = {}
        """Why a run's launcher could not be started the last time."""
        self.is_ready = False
        """It has looked at every run once."""

    def use_pools(self, pools: Sequence[Pool]) -> None:
        """Hosts have come or gone. What runs have on those that are gone is moved."""
        if list(pools) == list(self.pools):
            return
        before, now = {pool.name for pool in self.pools}, {pool.name for pool in pools}
        logger.info("pools: %s come, %s go", sorted(now - before), sorted(before - now))
        self.pools, self._scheduler = tuple(pools), Scheduler(pools, self._policy, True)
        self.records.changed.set()

    async def run(self) -> None:
        """Until it is cancelled. Raises StaleEpochError when another manager has taken over."""
        lease = asyncio.create_task(self._keep_lease())
        loop = asyncio.create_task(self._loop())
        try:
            done, _ = await asyncio.wait((lease, loop), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            tasks = (lease, loop, *self._looks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self.records.store.renew(self._lease, LEASE_SECONDS)
            except ConflictError:
                raise taken_over() from None
            except UnavailableError as error:
                logger.warning("the manager's lease cannot be renewed: %s", error)

    async def _loop(self) -> None:
        while True:
            self.records.changed.clear()
            try:
                await self.tick()
            except UnavailableError as error:
                logger.warning("the runs cannot be looked at: %s", error)
            try:
                async with asyncio.timeout(self._times.look):
                    await self.records.changed.wait()
            except TimeoutError:
                continue

    async def tick(self) -> None:
        """Once through all. A run whose store hangs holds up no other."""
        runs = [run for run in self.records.all() if self._needs_look(run)]
        presences = await self._launcher.find([context_of(run) for run in runs])
        for run in runs:
            if run.run_id not in self._looks:
                look = self._look(run, presences[run.run_id])
                self._looks[run.run_id] = asyncio.create_task(look)
        if self._looks:
            await asyncio.wait(self._looks.values(), timeout=self._times.look)
        for run_id in [run_id for run_id, task in self._looks.items() if task.done()]:
            with scope.about(run=run_id):
                self._settle(run_id, self._looks.pop(run_id))
        await self._share_out()
        if self._calls:
            await self._calls.follow(self.records.all())
        self.stores.close_idle()
        self.is_ready = True

    def _needs_look(self, run: Managed) -> bool:
        if run.is_deleted or run.state.has_processes:
            return True
        return run.state is RunState.QUEUED and run.run_id not in self._prepared

    def _settle(self, run_id: str, task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is None or isinstance(error, NotFoundError):
            self._failures.pop(run_id, None)
            if run_id not in self._lapsed:
                self.troubles.pop(run_id, None)
            return
        if isinstance(error, StaleEpochError):
            raise error
        if isinstance(error, UnavailableError | StoreError):
            self.troubles[run_id] = str(error)
            self._lapsed.pop(run_id, None)  # nor could its launcher write there
        count = self._failures[run_id] = self._failures.get(run_id, 0) + 1
        if count <= 1 or count % MOST_FAILURES == 0:
            trace = None if isinstance(error, TrimaranError) else error
            logger.warning("run %s: %s (%d times)", run_id, error, count, exc_info=trace)

    async def _look(self, run: Managed, presence: Presence) -> None:
        scope.learn(run=run.run_id)
        if run.is_deleted:
            await self._delete(run)
            return
        try:
            await self._follow(run, presence)
        except StoreError as error:
            await self._give_up(run, presence, error)

    async def _give_up(self, run: Managed, presence: Presence, error: StoreError) -> None:
        """A run whose own store is damaged or has gone back: nothing can be followed there. Where
        it is our store, what is written here raises again, and the run is left alone."""
        if presence is not Presence.GONE:
            await self._kill(run)
            raise error  # its devices are free once its processes are gone: then we look again
        # The copy that is brought back may be older than what was seen.
        words = {"error": run.without_folder(str(error)), "remedy": lost_store(run), "seen": 0}
        state = RunState.CANCELLED if run.goal is Goal.CANCEL else RunState.FAILED

        def make(now: Managed) -> Managed:
            return ended(replace(now, **words), state, time.time()) if now == run else now

        if (await self.records.change(run.run_id, make)).state is state:
            await self.stores.forget(run.store_url)  # a copy is opened again
            self.links.forget(run)

    async def _follow(self, run: Managed, presence: Presence) -> None:
        if run.run_id not in self._prepared:
            await self._prepare(run, presence)
        if not run.state.has_processes:
            return
        if presence is Presence.GONE and await self._is_elsewhere(run):
            presence = Presence.THERE
        reported, version = await self.links.reported(run)
        seen = ObservedRun(
            presence,
            await self._has_lease(run),
            reported,
            await self.links.replicas(run) if run.leaving else None,
            await self._last_words(run) if presence is Presence.GONE else "",
            self._ending_seconds(run, presence),
        )
        decision = decide(run, seen, time.time(), self._times)
        wanted = decision.run
        if decision.action is Action.KILL:
            # Before anything is written: who is frozen in a write keeps the store locked.
            await self._kill(run)
        if decision.note:
            logger.info("run %s: %s", run.run_id, decision.note)
            await self.links.say(run, EventKind.PROCESS, decision.note)
        if not wanted.state.has_processes:
            wanted = replace(wanted, seen=version)
            await self.links.say_once(wanted)

        # A client may have asked for a pause meanwhile: then we look again.
        def make(now: Managed) -> Managed:
            return wanted if now == run else now

        after = await self.records.change(run.run_id, make)
        if after == wanted:
            if decision.action is Action.START:
                await self._start(after)
            if after.state.has_processes:
                await self.links.tell(after)

    async def _is_elsewhere(self, run: Managed) -> bool:
        """A launcher that a manager on another host has started: by its lease alone is it seen."""
        holder = await self.links.launcher(run)
        return bool(holder) and is_elsewhere(holder)

    async def _has_lease(self, run: Managed) -> bool:
        """Or had no time to renew it: an outage of the store is no fault of the launchers."""
        try:
            has_lease = bool(await self.links.launcher(run))
        except UnavailableError:
            self._lapsed.pop(run.run_id, None)
            raise
        if has_lease:
            self._lapsed.pop(run.run_id, None)
            return True
        if run.run_id in self.troubles:
            await self._check_room(run)  # the launcher's time begins where it could write again
        since = self._lapsed.setdefault(run.run_id, time.monotonic())
        if time.monotonic() - since < self._times.lapse:
            return True
        await self._check_room(run)
        return False

    async def _check_room(self, run: Managed) -> None:
        """Raises StoreFullError where the run's store takes no write, so not its launcher's either. One
        that is frozen in a write keeps the store locked: then this says nothing."""
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self.links.tell(run, again=True)
        except StoreFullError:
            raise
        except (TimeoutError, UnavailableError) as error:
            why = error if str(error) else f"no answer for {ROOM_SECONDS:g} s"
            logger.info("run %s: its store takes no write: %s", run.run_id, why)

    def _ending_seconds(self, run: Managed, presence: Presence) -> float:
        if presence is not Presence.ENDING:
            self._ending.pop(run.run_id, None)
            return 0.0
        now = time.monotonic()
        return now - self._ending.setdefault(run.run_id, now)

    async def _last_words(self, run: Managed) -> str:
        if why := self._not_started.get(run.run_id):
            return why
        return await asyncio.to_thread(last_words, Path(run.folder))

    async def _kill(self, run: Managed) -> None:
        await self.records.check()
        await self._launcher.kill(context_of(run))
        self._ending.pop(run.run_id, None)

    async def _start(self, run: Managed) -> None:
        self._lapsed.pop(run.run_id, None)
        self._not_started.pop(run.run_id, None)
        try:
            await self._start_launcher(run)
        except (TrimaranError, OSError) as error:
            self._not_started[run.run_id] = str(error)
            if isinstance(error, UnavailableError | StoreFullError):
                # The machine, not the run: no launcher has died.
                await self._start_again(run, str(error))
            raise

    async def _start_again(self, run: Managed, why: str) -> None:
        def make(now: Managed) -> Managed:
            start_at = time.time() + self._times.first_pause
            planned = replace(now, start_at=start_at, held=now.without_folder(why))
            return planned if now == run else now

        await self.records.change(run.run_id, make)

    async def _start_launcher(self, run: Managed) -> None:
        await self.links.say_once(run)
        config = await asyncio.to_thread(write_run_files, run, self._deployment)
        own = plugin_variables(config)
        secrets = {name: value for name, value in self._secrets.items() if name in own}
        await self.links.tell(run, again=True)
        await self.records.check()
        await self._launcher.start(context_of(run), secrets)

    async def prepared(self, run_id: str) -> None:
        """Until the loop has made the folder and the store of a run that was added, so that who
        added it may watch or cancel it at once. A disk that hangs delays no caller for long."""
        with suppress(TimeoutError, NotFoundError):  # or it was deleted already
            async with asyncio.timeout(PREPARED_SECONDS):
                while (  # noqa: ASYNC110 - an event for each run would be more to keep
                    run_id not in self._prepared and not self.records.get(run_id).state.has_ended
                ):
                    await asyncio.sleep(0.01)

    async def _prepare(self, run: Managed, presence: Presence) -> None:
        """What creation does, also where a manager died in its middle."""
        try:
            await asyncio.to_thread(prepare, run, self._deployment)
        except InputError as error:
            if presence is not Presence.GONE:
                await self._kill(run)
                raise  # its devices are free once its processes are gone: then we look again
            if is_shared(run.store_url) and await self._is_elsewhere(run):
                raise  # it goes on there
            text = str(error)

            def give_up(now: Managed) -> Managed:
                failed = replace(now, error=text, remedy="submit the run again")
                return ended(failed, RunState.FAILED, time.time()) if now == run else now

            await self.records.change(run.run_id, give_up)
            raise
        if run.state is RunState.QUEUED:
            await self.links.say_once(run)
            self.stores.close_unused(run.store_url)  # it may wait for days
        self._prepared.add(run.run_id)

    async def _share_out(self) -> None:
        runs = [run for run in self.records.all() if not run.is_deleted]
        queue = [run.ask for run in runs if run.state is RunState.QUEUED]
        holdings = {
            run.run_id: DeviceHolding(
                run.ask, run.grant, run.leaving, run.state is RunState.RUNNING
            )
            for run in runs
            if run.state.has_processes
        }
        plan = self._scheduler.plan(list(holdings.values()), queue, time.time())
        for run_id, grant in plan.starts.items():
            logger.info("run %s: has %d devices", run_id, len(grant.devices))
            now = {"state": RunState.STARTING, "grant": grant, "start_at": time.time()}
            await self._change_if_queued(run_id, **now)
        for run_id in plan.moves:
            await self._move(holdings[run_id], plan.moves[run_id])
        # One that was moved is looked at again in the next plan.
        for run_id in (plan.adds.keys() | plan.takes.keys()) - plan.moves.keys():
            await self._scale(holdings[run_id], plan)
        known = {run.run_id: run.waiting_for for run in runs}
        for run_id, why in plan.waits.items():
            if known[run_id] != why:
                await self._change_if_queued(run_id, waiting_for=why)

    async def _change_if_queued(self, run_id: str, **changes: Any) -> None:
        def make(run: Managed) -> Managed:
            return replace(run, **changes) if run.state is RunState.QUEUED else run

        await self._change_if_there(run_id, make)

    async def _change_if_there(self, run_id: str, make: Callable[[Managed], Managed]) -> None:
        """Changes a run unless it was deleted since the plan was made."""
        with suppress(NotFoundError):
            await self.records.change(run_id, make)

    async def _move(self, holding: DeviceHolding, grant: Grant) -> None:
        run_id = holding.ask.run_id

        def make(run: Managed) -> Managed:
            return replace(run, grant=grant) if run.grant == holding.grant else run

        logger.info("run %s: has other devices instead of those that are gone", run_id)
        await self._change_if_there(run_id, make)

    async def _scale(self, holding: DeviceHolding, plan: Schedule) -> None:
        run_id = holding.ask.run_id
        added, taken = plan.adds.get(run_id, {}), plan.takes.get(run_id, frozenset[int]())

        def make(run: Managed) -> Managed:
            if run.grant != holding.grant or run.state is not RunState.RUNNING:
                return run  # it has changed since: the next plan sees it
            grant = Grant(run.grant.trainer, {**run.grant.replicas, **added})
            return replace(run, grant=grant, leaving=run.leaving | taken)

        logger.info("run %s: replicas %s are added, %s leave", run_id, [*added], sorted(taken))
        await self._change_if_there(run_id, make)

    async def _delete(self, run: Managed) -> None:
        await self.records.check()
        try:
            async with self.stores.of(run.store_url) as store:
                await store.delete_all()
        except NotFoundError:
            pass
        except StoreError as error:
            logger.warning("run %s: its records are not deleted: %s", run.run_id, error)
        self.troubles.pop(run.run_id, None)
        await self.stores.forget(run.store_url)
        self.links.forget(run)
        await asyncio.to_thread(remove_folder, Path(run.folder), run.run_id)
        await self.records.remove(run.run_id)
        for known in (self._lapsed, self._ending, self._not_started):
            known.pop(run.run_id, None)
        self._prepared.discard(run.run_id)  # a run of the same second may be called so again


def taken_over() -> StaleEpochError:
    return StaleEpochError(
        f"{LEASE}: another manager has taken over this store while this one stood still; this one ends"
    )


def lost_store(run: Managed) -> str:
    return f"bring back a copy of the store, then trimaran resume {run.run_id}"


def context_of(run: Managed) -> RunContext:
    return RunContext(run.run_id, Path(run.folder), run.store_url)
