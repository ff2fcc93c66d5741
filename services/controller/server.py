"""The controller process: conducts the run, and answers to the launcher and the manager."""

from __future__ import annotations

import gc
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from services.controller.goals import Goals
from services.controller.reporting.events import RunLog
from services.controller.run import conduct
from trimaran.config import RunConfig
from trimaran.errors import InputError, StaleEpochError, TrimaranError, first_error
from trimaran.ledger.disk import FreeDisk
from trimaran.run.context import RunContext
from trimaran.run.exits import TRY_AGAIN, exit_code
from trimaran.run.runs import EventKind, Goal, Run, RunState, goal_key, run_from_tree, run_key
from trimaran.store import Store, open_store, timed
from trimaran.telemetry.exposition import StoreSeconds
from trimaran.telemetry.series import (
    CONTROLLER_DISK,
    CONTROLLER_HELD,
    CONTROLLER_PROGRESS,
    CONTROLLER_STEP,
    CONTROLLER_STEPS,
)
from trimaran.types import Caller
from trimaran.v1 import controller_pb2 as pb
from trimaran.v1 import controller_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire import run_messages as run_wire

logger = logging.getLogger(__name__)

GOALS_REACHED = (RunState.SUCCEEDED, RunState.CANCELLED)
ALLOCATIONS_PER_COLLECTION = 50_000
"""With Python's own 700 the search for cyclic garbage was a fifteenth of the controller's work."""


class ControllerServicer(controller_pb2_grpc.ControllerServiceServicer):
    def __init__(self, epoch: int, log: RunLog, goals: Goals) -> None:
        self._epoch, self._log, self._goals = epoch, log, goals

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        self._check(request.run_id)
        run = self._log.run
        return pb.GetStatusResponse(
            epoch=self._epoch,
            step=run.step,
            goal=run_wire.encode_goal(self._goals.goal),
            running=run.state is RunState.RUNNING,
        )

    async def SetGoal(self, request: pb.SetGoalRequest, context: Any) -> pb.SetGoalResponse:
        self._check(request.run_id)
        self._goals.set(run_wire.decode_goal(request.goal))
        return pb.SetGoalResponse()

    def _check(self, run_id: str) -> None:
        """An empty id means the run that this controller conducts."""
        if run_id not in ("", self._log.run.run_id):
            raise InputError(
                f"run {run_id}: not here; this is the controller of {self._log.run.run_id}"
            )


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Conduct the run, from its ledger where it has one; returns at its end."""
    if config.endpoints.controller is None:
        raise InputError("endpoints.controller: missing; give host:port")
    # Reference counts free nearly everything. What is loaded by now stays, and is not looked through.
    gc.freeze()
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION)
    seconds = StoreSeconds()
    store = timed(await open_store(run.store_url), seconds)
    try:
        await _serve(config, config.endpoints.controller, run, store, seconds)
    finally:
        await store.close()


async def _serve(
    config: RunConfig, address: str, run: RunContext, store: Store, seconds: StoreSeconds
) -> None:
    # From here on an older controller can write neither events nor records.
    caller = Caller(run.run_id, await store.next_epoch(run.run_id))
    known = await _known(store, config, run)
    if known.state in GOALS_REACHED:
        logger.info(
            "the run has %s: the controller that reported it was killed before it had ended",
            known.state,
        )
        return
    goal = await store.get(goal_key(run.run_id))
    goals = Goals(Goal(goal.value["goal"]) if goal else Goal.RUN)
    log = RunLog(
        store,
        _begin(known, config, goals),
        caller.epoch,
        config.outage_timeout,
        patience_when_full=config.run.hold_timeout,
    )
    goals.on_change = lambda: log.emit(EventKind.STATE, state=goals.state(log.run.state))

    add = controller_pb2_grpc.add_ControllerServiceServicer_to_server
    servicer = ControllerServicer(caller.epoch, log, goals)
    server = rpc.Server(address, [rpc.service(pb.DESCRIPTOR, add, servicer)], trust=run.trust)
    metrics = server.metrics
    metrics.show(CONTROLLER_STEP, lambda: log.run.step)
    metrics.show(CONTROLLER_STEPS, lambda: log.run.num_steps)
    metrics.show(CONTROLLER_PROGRESS, lambda: log.progress_at)
    metrics.show(CONTROLLER_HELD, lambda: bool(log.run.held))
    metrics.show_store(seconds)
    metrics.show_step(lambda: {**log.validation, **log.step})
    await server.start()
    try:
        async with (
            log.writing(),
            FreeDisk(run.folder).watched() as disk,
            AsyncExitStack() as afterwards,
        ):
            metrics.show(CONTROLLER_DISK, lambda: disk.free_bytes)
            log.emit(EventKind.STATE, text="waiting for the services")
            try:
                state = await conduct(config, run, caller, store, log, goals, metrics, afterwards)
            except Exception as error:
                cause = first_error(error) if isinstance(error, ExceptionGroup) else error
                _tell_failure(log, cause)
                await log.written()
                raise cause from None
            kind = EventKind.FINISHED if state.has_ended else EventKind.STATE
            log.emit(kind, state=state)
            await log.written()
    finally:
        await server.stop()


async def _known(store: Store, config: RunConfig, run: RunContext) -> Run:
    """As the launcher recorded it, or a controller before this one."""
    record = await store.get(run_key(run.run_id))
    begun = Run(run.run_id, RunState.STARTING, 0, config.run.num_steps)
    return run_from_tree(record.value) if record else begun


def _begin(known: Run, config: RunConfig, goals: Goals) -> Run:
    state = goals.state(RunState.STARTING)
    num_steps = config.run.num_steps or known.num_steps
    reads = "reading the data and the ledger"
    return replace(known, state=state, num_steps=num_steps, error="", remedy="", doing=reads)


def _tell_failure(log: RunLog, cause: BaseException) -> None:
    """What may pass is no failure yet: the launcher starts the controller again."""
    if isinstance(cause, StaleEpochError):
        return
    if exit_code(cause) == TRY_AGAIN:
        log.emit(EventKind.PROCESS, text=f"the controller cannot go on: {cause}")
        return
    remedy = cause.remedy if isinstance(cause, TrimaranError) else TrimaranError.remedy
    error = str(cause) or type(cause).__name__
    log.emit(EventKind.FINISHED, state=RunState.FAILED, error=error, remedy=remedy)
