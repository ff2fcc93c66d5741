"""A run from its first process to its last: starts them, keeps them alive, follows what is wanted.

store: goal, replicas ──▶ Launch ──▶ processes        (start, revive, drain, end)
store: run, events    ◀── Launch ◀── processes        (what the controller could not say)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from commands.launch.health import HealthWatch
from commands.launch.long_logs import LOOK_SECONDS, shorten_logs
from commands.launch.processes import Processes
from commands.launch.reports import Reports
from commands.launch.scaling import Scaling
from commands.launch.service_process import ServiceDiedError
from commands.launch.site import Site
from trimaran.config import RunConfig
from trimaran.errors import TrimaranError, UnavailableError, first_error
from trimaran.run.agreement import forget_model
from trimaran.run.context import RunContext
from trimaran.run.device_turns import waits_for_turn
from trimaran.run.lease import held_lease
from trimaran.run.runs import Goal, Run, RunState, launcher_lease, overdue_key, replicas_key
from trimaran.store import Store

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
DONE = (RunState.SUCCEEDED, RunState.CANCELLED, RunState.PAUSED)
"""What only a controller says that has ended in order. One that is killed behind that word was not
seen to."""

SetGoal = Callable[[str, Goal], Awaitable[None]]
"""Sends the goal to the controller at this address; raises UnavailableError or DeadlineError while there is none."""


async def launch(
    config: RunConfig,
    run: RunContext,
    site: Site,
    store: Store,
    set_goal: SetGoal,
    on_start: Callable[[Processes], None] = lambda processes: None,
) -> Run | None:
    """Until the run has ended, is paused, or has failed; how it stands then.

    Raises ServiceDiedError, recorded as the run's failure, and InputError while another launcher
    has the run. Who cancels it ends the processes and leaves the run as it is, to be resumed.
    """
    async with held_lease(store, launcher_lease(run.run_id)) as lease:
        reports = Reports(store, run, lease)
        await forget_model(store, run.run_id)
        await store.delete(overdue_key(run.run_id))  # of lives that ended with the launcher before
        takes_over = await reports.starting(config, site.num_devices)
        if store.durability:
            reports.note(f"the run's store: {store.durability}")
        processes = Processes(site.services, children=site.children)
        processes.takes_over = takes_over
        await reports.processes(processes.addresses, processes.restarts)
        how = "taking over" if takes_over else "starting"
        logger.info("%s run %s: %s", how, run.run_id, ", ".join(processes.services))
        on_start(processes)
        try:
            async with processes:
                ended = await _Watch(config, run, site, store, processes, reports, set_goal).run()
        except ServiceDiedError as error:
            await _record_failure(reports, error)
            raise
        if ended is not None:
            await reports.ended(ended)
        run_at_end = await reports.run()
        if run_at_end is not None:
            logger.info(
                "the processes have ended: run %s, step %d", run_at_end.state, run_at_end.step
            )
        return run_at_end


class _Watch:
    """What goes on beside the processes."""

    def __init__(
        self,
        config: RunConfig,
        run: RunContext,
        site: Site,
        store: Store,
        processes: Processes,
        reports: Reports,
        set_goal: SetGoal,
    ) -> None:
        self._config, self._run, self._store = config, run, store
        self._processes, self._reports, self._set_goal = processes, reports, set_goal
        self._scaling = Scaling(config, site.make_replica, processes, reports.note)
        self._health = HealthWatch(
            *(processes, config.frozen_timeout, config.start_timeout, reports.note, run.trust),
            waits=partial(waits_for_turn, config, run),
        )
        self._step, self._recorded = -1, (processes.addresses, dict(processes.restarts))
        self._state: RunState | None = None
        self._goal_sent: tuple[Goal, str] | None = None
        """The goal that was given to the controller, and the incarnation that got it."""

    async def run(self) -> RunState | None:
        """Returns when the controller has ended well, or has at least said so; or how the run stands
        that was ended here, because it shall end and was still starting."""
        try:
            async with asyncio.TaskGroup() as tasks:
                helpers = [
                    tasks.create_task(work)
                    for work in (
                        *(self._health.run(), self._reports.tell(), self._scale()),
                        *(self._shorten_logs(), self._end_overdue()),
                    )
                ]
                waiting = tasks.create_task(self._processes.wait(self._reports.note))
                ending = tasks.create_task(self._follow())
                await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
                for task in (*helpers, waiting, ending):
                    task.cancel()
        except ExceptionGroup as errors:
            raise first_error(errors) from None
        finally:
            await self._tell_rest()
        return None if waiting.done() and not waiting.cancelled() else ending.result()

    async def _follow(self) -> RunState | None:
        """What is wanted and how far the run is. Returns when it shall end before it is under way, and
        when the controller has had its last word and is no more."""
        while True:
            try:
                goal, run = await self._reports.goal(), await self._reports.run()
            except UnavailableError as error:
                logger.warning("the run's store is away: %s", error)
            else:
                self._note_progress(run)
                if run is not None and run.state in DONE and not self._has_controller():
                    return None
                if goal is not Goal.RUN:
                    if not self._processes.running:
                        return RunState.PAUSED if goal is Goal.PAUSE else RunState.CANCELLED
                    await self._send_goal(goal)
            await asyncio.sleep(POLL_SECONDS)

    def _has_controller(self) -> bool:
        controller = self._processes.alive.get("controller")
        return controller is not None and bool(controller.incarnation)

    def _note_progress(self, run: Run | None) -> None:
        if run is None:
            return
        if run.state in (RunState.RUNNING, RunState.PAUSING, RunState.CANCELLING):
            self._processes.running = True
        if run.state is not self._state:
            self._state = run.state
            logger.info("run %s, step %d", run.state, run.step)
        if run.step != self._step:
            self._step = run.step
            self._processes.progressed()

    async def _send_goal(self, goal: Goal) -> None:
        """Once to each controller: one that starts later reads it in the store itself."""
        controller = self._processes.alive.get("controller")
        if controller is None or self._goal_sent == (goal, controller.incarnation):
            return
        try:
            await self._set_goal(controller.address, goal)
        except TrimaranError as error:
            logger.info("the controller does not hear yet that it shall %s: %s", goal, error)
        else:
            self._goal_sent = goal, controller.incarnation

    async def _scale(self) -> None:
        while True:
            try:
                record = await self._store.get(replicas_key(self._run.run_id))
                if record is not None:
                    await self._scaling.scale(record.value)
                now = self._processes.addresses, dict(self._processes.restarts)
                if self._recorded != now:
                    await self._reports.processes(*now)
                    self._recorded = now
            except UnavailableError as error:
                logger.warning("the run's store is away: %s", error)
            await asyncio.sleep(POLL_SECONDS)

    async def _end_overdue(self) -> None:
        """Replicas that keep the devices of colocated pools in the trainer's turn; once each time."""
        version = 0
        while self._config.is_colocated:
            try:
                record = await self._store.get(overdue_key(self._run.run_id))
            except UnavailableError as error:
                logger.warning("the run's store is away: %s", error)
            else:
                if record is not None and record.version > version:
                    version = record.version
                    for name, why in record.value.items():
                        await self._health.end_overdue(name, why)
            await asyncio.sleep(POLL_SECONDS)

    async def _shorten_logs(self) -> None:
        while True:
            await asyncio.to_thread(shorten_logs, self._run.folder / "logs")
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell_rest(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS):
                await self._reports.tell_rest()
        except TimeoutError:
            logger.warning("the last notes could not be recorded: the run's store is away")


async def _record_failure(reports: Reports, error: ServiceDiedError) -> None:
    """Unless the controller has recorded the end itself, in its own words."""
    run = await reports.run()
    if run is not None and run.state.has_ended:
        return
    remedy = (
        "Correct what it says; where that is in the configuration, start a new run."
        if error.exit_code == 2
        else "Read its log, fix the cause, then resume the run."
    )
    await reports.ended(RunState.FAILED, str(error), remedy)
