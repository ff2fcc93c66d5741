"""What the launcher writes into the run's store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace

from trimaran.config import RunConfig, config_to_tree
from trimaran.errors import InputError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.events import append_event, make_event
from trimaran.run.runs import (
    EventKind,
    Goal,
    Replicas,
    Run,
    RunState,
    config_key,
    endpoints_key,
    goal_key,
    restarts_key,
    run_from_tree,
    run_key,
    run_to_tree,
)
from trimaran.store import Lease, Store

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class Reports:
    """Fenced by the launcher's lease: one that was replaced writes no records.

    Example:
        reports = Reports(store, run, lease)
        await reports.starting(config)
        reports.note("rollout-1 is started again")
    """

    def __init__(self, store: Store, run: RunContext, lease: Lease) -> None:
        self._store, self._context, self._lease = store, run, lease
        self._notes: asyncio.Queue[str] = asyncio.Queue()

    async def run(self) -> Run | None:
        """As its processes last reported it."""
        record = await self._store.get(run_key(self._context.run_id))
        return run_from_tree(record.value) if record else None

    async def goal(self) -> Goal:
        record = await self._store.get(goal_key(self._context.run_id))
        return Goal(record.value["goal"]) if record else Goal.RUN

    async def starting(self, config: RunConfig, num_devices: int = 0) -> bool:
        """Also puts the configuration where services find it that have no file of it.

        Whether an earlier launcher has gone and left the run under way."""
        before = await self.run()
        run = before or Run(self._context.run_id, RunState.STARTING, 0, 0, created_at=time.time())
        run = replace(
            run,
            state=RunState.STARTING,
            num_steps=config.run.num_steps or run.num_steps,
            name=config.run.name,
            error="",
            remedy="",
            held="",
            started_at=run.started_at or time.time(),
            ended_at=0.0,
            replicas=Replicas(
                config.rollout.replicas, config.rollout.max_replicas, config.rollout.replicas
            ),
            folder=str(self._context.folder),
            starts=run.starts + 1,
            devices=num_devices,
            ends_at=0.0,
            doing="starting the processes",
        )
        await self._put(
            {run_key(run.run_id): run_to_tree(run), config_key(run.run_id): config_to_tree(config)}
        )
        return before is not None and before.starts > 0 and before.state.has_processes

    async def processes(self, addresses: Mapping[str, str], restarts: Mapping[str, int]) -> None:
        run_id = self._context.run_id
        await self._put(
            {endpoints_key(run_id): dict(addresses), restarts_key(run_id): dict(restarts)}
        )

    async def ended(self, state: RunState, error: str = "", remedy: str = "") -> None:
        """When the controller could not say so itself."""
        run = await self.run()
        assert run, "starting() comes first"
        ended_at = time.time() if state.has_ended else 0.0
        run = replace(
            run,
            state=state,
            error=error,
            remedy=remedy,
            held="",
            devices=0,
            doing="",
            ended_at=ended_at,
        )
        await self._record(run)
        kind = EventKind.FINISHED if state.has_ended else EventKind.STATE
        await append_event(self._store, make_event(kind, run))

    def note(self, text: str) -> None:
        """A line of the log, and an event that `tell` appends."""
        logger.info("%s", text)
        self._notes.put_nowait(text)

    async def tell(self) -> None:
        """Appends the notes, for ever."""
        while True:
            await self._tell(await self._notes.get())

    async def tell_rest(self) -> None:
        while not self._notes.empty():
            await self._tell(self._notes.get_nowait())

    async def _tell(self, text: str) -> None:
        while True:
            try:
                run = await self.run()
                assert run, "starting() comes first"
                await append_event(self._store, make_event(EventKind.PROCESS, run, text))
                return
            except UnavailableError as error:
                logger.warning("the run's events cannot be written: %s", error)
                await asyncio.sleep(RETRY_SECONDS)

    async def refused(self, config: RunConfig, error: InputError) -> None:
        """Nothing was started: what the run was given is wrong."""
        await self.starting(config)
        await self.ended(RunState.FAILED, str(error), error.remedy)

    async def _record(self, run: Run) -> None:
        await self._put({run_key(run.run_id): run_to_tree(run)})

    async def _put(self, records: Mapping[str, object]) -> None:
        await self._store.put_fenced(records, self._lease.name, self._lease.epoch)
