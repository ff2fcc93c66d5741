"""A controller that only tells what it was given to tell, and breaks the stream when told so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from trimaran import rpc, run_wire
from trimaran.errors import UnavailableError
from trimaran.runs import EventKind, Run, RunEvent, RunState
from trimaran.v1 import run_pb2, run_pb2_grpc


class FakeController(run_pb2_grpc.RunServiceServicer):
    def __init__(self, events: Sequence[RunEvent], break_behind: int) -> None:
        self._events, self._break_behind = events, break_behind
        self.asked_behind: list[int] = []
        self.num_cancels = 0
        self.num_told = 0

    async def WatchRun(
        self, request: run_pb2.WatchRunRequest, context: Any
    ) -> AsyncIterator[run_pb2.WatchRunResponse]:
        first = not self.asked_behind
        self.asked_behind.append(request.after_sequence)
        for event in self._events[request.after_sequence :]:
            yield run_pb2.WatchRunResponse(event=run_wire.encode_event(event))
            self.num_told += 1
            if first and event.sequence == self._break_behind:
                raise UnavailableError("the stream broke")

    async def GetRun(self, request: run_pb2.GetRunRequest, context: Any) -> run_pb2.GetRunResponse:
        return run_pb2.GetRunResponse(run=run_wire.encode_run(self._events[0].run))

    async def CancelRun(
        self, request: run_pb2.CancelRunRequest, context: Any
    ) -> run_pb2.CancelRunResponse:
        self.num_cancels += 1
        return run_pb2.CancelRunResponse(run=run_wire.encode_run(self._events[-1].run))


async def serve(controller: FakeController, address: str) -> rpc.Server:
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(run_pb2.DESCRIPTOR, add, controller)])
    await server.start()
    return server


def event(
    sequence: int,
    kind: str,
    step: int,
    values: dict[str, float] | None = None,
    text: str = "",
    state: RunState = RunState.RUNNING,
    error: str = "",
    held: str = "",
) -> RunEvent:
    run = Run("run", state, step, 4, error, held=held)
    return RunEvent(sequence, EventKind(kind), run, values or {}, text)
