"""A controller that only takes goals, and events as one leaves them in the run's store."""

from __future__ import annotations

from typing import Any

from trimaran.run.runs import EventKind, Goal, Run, RunEvent, RunState
from trimaran.v1 import controller_pb2, controller_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire import run_messages as run_wire


class FakeController(controller_pb2_grpc.ControllerServiceServicer):
    def __init__(self, step: int) -> None:
        self.goals: list[Goal] = []
        self._step = step

    async def SetGoal(self, request: Any, context: Any) -> Any:
        self.goals.append(run_wire.decode_goal(request.goal))
        return controller_pb2.SetGoalResponse()

    async def GetStatus(self, request: Any, context: Any) -> Any:
        return controller_pb2.GetStatusResponse(epoch=1, step=self._step, goal="GOAL_CANCEL")


async def serve(controller: FakeController, address: str) -> rpc.Server:
    add = controller_pb2_grpc.add_ControllerServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(controller_pb2.DESCRIPTOR, add, controller)])
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
