"""What clients may ask of the manager, whichever way they come: RunService and HTTP call this."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from services.manager.admission.admission import check_request_id
from services.manager.admission.costs import check_costs, check_kept, check_owner, host_memory_gib
from services.manager.audit import audited
from services.manager.manager import Manager
from services.manager.reading import RunReader
from services.manager.reconcile import ended
from services.manager.records import Managed
from services.manager.scheduling.device_memory import check_memory
from services.manager.scheduling.needs import check_fits, find_needs
from services.manager.scheduling.pools import DeviceRequest, Need
from services.manager.settings import ManagerSettings
from trimaran.config import RunConfig, config_to_tree, parse_config
from trimaran.errors import (
    AlreadyExistsError,
    InputError,
    LimitError,
    StateError,
    UnavailableError,
)
from trimaran.host.call_waits import locked
from trimaran.run.launchers import check_hosts
from trimaran.run.runs import (
    EventKind,
    Goal,
    Run,
    RunState,
)
from trimaran.store import StoreError, StoreFullError, run_store_url
from trimaran.trust.access import ClientIdentity, Trust

logger = logging.getLogger(__name__)

DELETE_SECONDS = 10.0
EARLIER = "the manager's store, for which an earlier run waits,"

Admit = Callable[[str, Sequence[str]], RunConfig]
"""A run's YAML and its overrides, checked against what the operator allows. Raises InputError,
ForbiddenError or LimitError."""


class Runs(RunReader):
    """Reads runs, creates them and changes them.

    Example:
        run = await runs.create(LOCAL, "request-1", yaml_text, ["run.seed=2"], priority=0)
        async for event in runs.events(LOCAL, run.run_id, after=0):
            print(event.kind, event.values)
    """

    def __init__(self, manager: Manager, settings: ManagerSettings, admit: Admit) -> None:
        super().__init__(manager.records, manager.stores, settings.limits.watchers)
        self._manager, self._settings, self._admit = manager, settings, admit
        self._records = manager.records
        self._counting = asyncio.Lock()
        """Held from the count of an owner's runs until one more is recorded."""

    @audited
    async def create(
        self,
        client: ClientIdentity,
        request_id: str,
        config: str,
        overrides: Sequence[str] = (),
        priority: int = 0,
    ) -> Run:
        """Queues a run; the same request id of the same owner is the same run.

        Raises InputError, ForbiddenError, LimitError; AlreadyExistsError where the request id was
        another specification's, and UnavailableError while its run is being deleted: once that is
        gone, the request id is free again.
        """
        check_request_id(request_id)
        asked = _digest(config, overrides, priority)
        # Before what the operator allows by now: who asks again was let in already.
        if (known := await self._known(client.owner, request_id, asked)) is not None:
            return known.view
        checked, needs = await self._check(config, overrides, priority)
        async with locked(self._counting, EARLIER):
            if (known := await self._known(client.owner, request_id, asked)) is not None:
                return known.view
            self._check_number(client.owner)
            self._check_kept(client.owner)
            run_id = await asyncio.to_thread(self._new_id, checked.run.name, time.time())
            made = self._make(client, request_id, checked, priority, run_id, needs)
            made = replace(made, asked=asked)
            await self._records.add(made)
        await self._manager.prepared(made.run_id)
        return made.view

    async def check(
        self,
        client: ClientIdentity,
        config: str,
        overrides: Sequence[str] = (),
        priority: int = 0,
    ) -> None:
        """Raises what `create` would raise by now for a new request."""
        await self._check(config, overrides, priority)
        self._check_number(client.owner)
        self._check_kept(client.owner)

    async def _check(
        self, config: str, overrides: Sequence[str], priority: int
    ) -> tuple[RunConfig, tuple[Need, Need]]:
        """The configuration as it would run, and what its trainer and a replica need."""
        if abs(priority) > self._settings.limits.priority:
            most = self._settings.limits.priority
            raise InputError(f"priority: {priority} is not between {-most} and {most}")
        checked = await asyncio.to_thread(self._admit, config, overrides)
        return checked, await asyncio.to_thread(self._find_needs, checked)

    async def _known(self, owner: str, request_id: str, asked: str) -> Managed | None:
        """The run of an earlier request. It is compared with what the client sent, not with what came of
        it: that changes with the operator's configuration and with Trimaran's version."""
        known = await self._records.find_request(owner, request_id)
        if known is None:
            return None
        if known.is_deleted:
            raise UnavailableError(
                f"request_id: {request_id} is that of {known.run_id}, which is being deleted; ask"
                " again, or choose a new one"
            )
        if known.asked not in ("", asked):
            raise AlreadyExistsError(
                f"request_id: {request_id} is that of {known.run_id}, which has another"
                " specification or priority; choose a new one"
            )
        return known

    @audited
    async def pause(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has ended or is being cancelled."""

        def make(run: Managed) -> Managed:
            if run.state in (RunState.PAUSED, RunState.PAUSING):
                return run
            is_queued = run.state is RunState.QUEUED
            state = RunState.PAUSED if is_queued else RunState.PAUSING
            return run.go(state, goal=Goal.PAUSE, asked_by=client.name)

        return await self._steer(client, run_id, make)

    @audited
    async def resume(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has succeeded, or whose processes are still ending,
        InputError where the pools are too small for it by now, and LimitError where its owner has
        too many others, or where it has ended and costs more than is allowed by now.

        A run that is paused was let in, and stays so.
        """
        run = self._of(client, run_id)
        if run.state in (RunState.FAILED, RunState.CANCELLED):
            await asyncio.to_thread(self._check_costs, run)

        def make(run: Managed) -> Managed:
            if run.state in (RunState.QUEUED, RunState.STARTING, RunState.RUNNING):
                return run
            check_fits(run.ask, self._manager.pools, f"run {run_id}")
            if run.state.has_ended:
                self._check_number(run.owner)
            cleared = {"error": "", "remedy": "", "ended_at": 0.0, "queued_at": time.time()}
            return run.go(RunState.QUEUED, goal=Goal.RUN, asked_by=client.name, **cleared)

        async with locked(self._counting, EARLIER):
            resumed = await self._records.change(run_id, make)
        return await self._announce(resumed)

    @audited
    async def cancel(self, client: ClientIdentity, run_id: str) -> Run:
        """Raises StateError for a run that has succeeded or failed."""

        def make(run: Managed) -> Managed:
            if run.state in (RunState.CANCELLED, RunState.CANCELLING):
                return run
            asked = replace(run, goal=Goal.CANCEL, asked_by=client.name)
            if run.state in (RunState.QUEUED, RunState.PAUSED):
                return ended(asked, RunState.CANCELLED, time.time())
            return asked.go(RunState.CANCELLING)

        return await self._steer(client, run_id, make)

    @audited
    async def scale(
        self, client: ClientIdentity, run_id: str, min_replicas: int, max_replicas: int
    ) -> Run:
        """Raises InputError, LimitError, and StateError for a run that has ended."""
        most, devices = self._settings.limits.replicas, self._settings.limits.devices
        if not 1 <= min_replicas <= max_replicas:
            raise InputError(
                f"min_replicas {min_replicas}, max_replicas {max_replicas}: must be 1 or more, and the"
                " first not more than the second"
            )
        if most and max_replicas > most:
            raise LimitError(f"max_replicas: {max_replicas}, and {most} are allowed")
        self._check_memory(self._of(client, run_id), max_replicas)

        def make(run: Managed) -> Managed:
            if run.state.has_ended:
                raise StateError(f"run {run_id}: has {run.state}; resume it before it is scaled")
            if not run.trainer.count and {min_replicas, max_replicas} != {run.min_replicas}:
                raise InputError(
                    f"min_replicas {min_replicas}, max_replicas {max_replicas}: with run.pools colocated the"
                    f" run has {run.min_replicas}, on the devices of its trainer; start another run"
                )
            scaled = replace(run, min_replicas=min_replicas, max_replicas=max_replicas)
            check_fits(scaled.ask, self._manager.pools, "min_replicas")
            if 0 < devices < scaled.ask.num_devices:
                raise LimitError(
                    f"min_replicas: {min_replicas} need {scaled.ask.num_devices} devices with the"
                    f" trainer's, and {devices} are allowed"
                )
            return scaled

        scaled = await self._records.change(run_id, make)
        text = f"scaled to {min_replicas}:{max_replicas} by {client.name}"
        return await self._announce(scaled, text)

    @audited
    async def delete(self, client: ClientIdentity, run_id: str) -> None:
        """Raises StateError for a run that has not ended."""

        def make(run: Managed) -> Managed:
            if run.state is RunState.CANCELLING:
                raise StateError(f"run {run_id}: is cancelling; delete it once it has ended")
            if not run.state.has_ended:
                raise StateError(f"run {run_id}: is {run.state}; cancel it before it is deleted")
            return replace(run, is_deleted=True)

        self._of(client, run_id)
        await self._records.change(run_id, make)
        with suppress(TimeoutError):  # what is left by then is removed later
            await self._records.wait_until_removed(run_id, DELETE_SECONDS)

    def _check_number(self, owner: str) -> None:
        own = [run for run in self._records.all() if run.owner == owner]
        count = sum(not run.state.has_ended for run in own)
        check_owner(owner, count, self._settings.limits)

    def _check_kept(self, owner: str) -> None:
        kept = [r for r in self._records.all() if r.owner == owner and not r.is_deleted]
        check_kept(owner, len(kept), self._settings.limits)

    def _check_costs(self, run: Managed) -> None:
        config = parse_config(run.config, source=f"run {run.run_id}")
        scaled = {"replicas": run.min_replicas, "max_replicas": run.max_replicas}
        rollout = config.rollout.model_copy(update=scaled)
        now = config.model_copy(update={"rollout": rollout})
        check_costs(now, self._settings.limits)

    def _check_memory(self, run: Managed, replicas: int) -> None:
        if not (most := self._settings.limits.host_memory_gib):
            return
        config = parse_config(run.config, source=f"run {run.run_id}")
        if most < (wanted := host_memory_gib(config, replicas)):
            raise LimitError(
                f"max_replicas: {replicas} need {wanted:,.6g} GiB of the host's memory with the reward"
                f" workers and the answers under way, and {most:g} are allowed"
            )

    def _find_needs(self, config: RunConfig) -> tuple[Need, Need]:
        """The needs of the trainer and of one replica. It reads the model's folder, on a disk that may hang."""
        check_hosts(config, self._settings.launcher)
        pools, rollout = self._manager.pools, config.rollout
        trainer, replica = find_needs(config, pools)
        replicas = rollout.replicas, rollout.max_replicas
        check_fits(DeviceRequest("", "", 0, 0.0, trainer, replica, *replicas), pools)
        # After that: the pools bound the ranks of which each is computed.
        check_memory(config, trainer, replica, pools)
        return trainer, replica

    def _make(
        self,
        client: ClientIdentity,
        request_id: str,
        config: RunConfig,
        priority: int,
        run_id: str,
        needs: tuple[Need, Need],
    ) -> Managed:
        now, rollout = time.time(), config.rollout
        folder = self._settings.folder / run_id
        trainer, replica = needs
        return Managed(
            run_id=run_id,
            name=config.run.name,
            owner=client.owner,
            request_id=request_id,
            priority=priority,
            created_at=now,
            folder=str(folder),
            store_url=run_store_url(self._settings.store_url, run_id, folder),
            config=config_to_tree(config),
            num_steps=config.run.num_steps,
            trainer=trainer,
            replica=replica,
            min_replicas=rollout.replicas,
            max_replicas=rollout.max_replicas,
            queued_at=now,
            asked_by=client.name,
        )

    def _new_id(self, name: str, now: float) -> str:
        """NAME-DATE-TIME; the next second's where that is taken."""
        known = {run.run_id for run in self._records.all()}
        for second in itertools.count(int(now)):
            run_id = f"{name}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(second))}"
            if run_id not in known and not (self._settings.folder / run_id).exists():
                return run_id
        raise AssertionError("unreachable")

    def _trouble(self, run: Managed) -> str:
        return self._manager.troubles.get(run.run_id, "")

    async def _trust(self, run: Managed) -> Trust:
        await self._manager.prepared(
            run.run_id
        )  # one of another manager's has no token here before
        return await super()._trust(self._records.get(run.run_id))

    async def _steer(
        self, client: ClientIdentity, run_id: str, make: Callable[[Managed], Managed]
    ) -> Run:
        self._of(client, run_id)
        return await self._announce(await self._records.change(run_id, make))

    async def _announce(self, run: Managed, text: str = "") -> Run:
        """To those who watch it: its state or, where that is the same, `text`."""
        links = self._manager.links
        try:
            await (links.say(run, EventKind.PROCESS, text) if text else links.say_once(run))
        except (StoreError, StoreFullError) as error:
            # The change is recorded, and stands: only watchers of the run do not see it.
            logger.warning(
                "run %s: %s, which its store cannot take: %s", run.run_id, run.state, error
            )
        return run.view


def _digest(config: str, overrides: Sequence[str], priority: int) -> str:
    """SHA-256 of what CreateRun was sent."""
    sent = json.dumps([config, list(overrides), priority])
    return hashlib.sha256(sent.encode(errors="surrogatepass")).hexdigest()
