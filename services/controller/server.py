"""The controller process: serves the run to its watchers, and conducts it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

from services.controller.events import RunLog
from services.controller.run import conduct
from trimaran import rpc, run_wire
from trimaran.config import RunConfig
from trimaran.errors import InputError, first_error
from trimaran.run_context import RunContext
from trimaran.runs import EventKind, RunState
from trimaran.store import Store, open_store
from trimaran.v1 import run_pb2, run_pb2_grpc

logger = logging.getLogger(__name__)

WATCHER_SECONDS = 3.0


class RunServicer(run_pb2_grpc.RunServiceServicer):
    def __init__(self, log: RunLog, cancelled: asyncio.Event) -> None:
        self._log, self._cancelled = log, cancelled

    async def GetRun(self, request: run_pb2.GetRunRequest, context: Any) -> run_pb2.GetRunResponse:
        self._check(request.run_id)
        return run_pb2.GetRunResponse(run=run_wire.encode_run(self._log.run))

    async def WatchRun(
        self, request: run_pb2.WatchRunRequest, context: Any
    ) -> AsyncIterator[run_pb2.WatchRunResponse]:
        self._check(request.run_id)
        async for event in self._log.watch(request.after_sequence):
            yield run_pb2.WatchRunResponse(event=run_wire.encode_event(event))

    async def CancelRun(
        self, request: run_pb2.CancelRunRequest, context: Any
    ) -> run_pb2.CancelRunResponse:
        self._check(request.run_id)
        self._cancelled.set()
        return run_pb2.CancelRunResponse(run=run_wire.encode_run(self._log.run))

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
    store = await open_store(run.store_url)
    try:
        await _serve(config, config.endpoints.controller, run, store)
    finally:
        await store.close()


async def _serve(config: RunConfig, address: str, run: RunContext, store: Store) -> None:
    log = RunLog(run.run_id, config.run.steps)
    cancelled = asyncio.Event()
    servicer = RunServicer(log, cancelled)

    add = run_pb2_grpc.add_RunServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(run_pb2.DESCRIPTOR, add, servicer)])
    await server.start()
    try:
        log.emit(EventKind.STATE, text="waiting for the services")
        state = await conduct(config, run, store, log, cancelled)
        log.emit(EventKind.FINISHED, state=state, text=str(run.folder))
        await log.wait_for_watchers(WATCHER_SECONDS)
    except asyncio.CancelledError:
        log.emit(EventKind.FINISHED, state=RunState.CANCELLED, text=str(run.folder))
        raise
    except Exception as error:
        cause = first_error(error) if isinstance(error, ExceptionGroup) else error
        log.emit(EventKind.FINISHED, state=RunState.FAILED, error=str(cause), text=str(run.folder))
        await log.wait_for_watchers(WATCHER_SECONDS)
        raise cause from None
    finally:
        try:
            await store.put(f"run/{log.run.run_id}", _record(log))
        finally:
            await server.stop()


def _record(log: RunLog) -> dict[str, Any]:
    run = log.run
    return {"state": run.state.value, "step": run.step, "error": run.error}
