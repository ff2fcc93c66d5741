"""ControllerService: how one run stands with its controller, and what it works towards."""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.clients.base import CONTROL_SECONDS, Client
from trimaran.run.runs import Goal
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.v1 import controller_pb2 as pb
from trimaran.v1 import controller_pb2_grpc
from trimaran.wire import rpc
from trimaran.wire import run_messages as run_wire


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """Example: ControllerStatus(epoch=2, step=7, goal=Goal.RUN, running=True)"""

    epoch: int
    """Counts the run's controllers."""
    step: int
    """The last one that is done."""
    goal: Goal
    running: bool
    """All services have answered and the first weights are live; it does not end yet."""


class ControllerClient(Client):
    """Speaks to the controller of a run.

    Example:
        async with ControllerClient("127.0.0.1:7000", "addition-1") as client:
            await client.set_goal(Goal.PAUSE)
    """

    _service = controller_pb2_grpc.ControllerServiceStub

    def __init__(self, address: str, run_id: str = "", trust: Trust = NO_TRUST) -> None:
        """`run_id`: empty for whichever run the controller conducts."""
        super().__init__(address, trust)
        self._run_id = run_id

    async def get_status(self) -> ControllerStatus:
        request = pb.GetStatusRequest(run_id=self._run_id)
        answer: pb.GetStatusResponse = await rpc.call(
            self._stub.GetStatus, request, CONTROL_SECONDS
        )
        goal = run_wire.decode_goal(answer.goal)
        return ControllerStatus(answer.epoch, answer.step, goal, answer.running)

    async def set_goal(self, goal: Goal) -> None:
        """Idempotent. Raises OutOfOrderError for a goal that would turn back."""
        request = pb.SetGoalRequest(run_id=self._run_id, goal=run_wire.encode_goal(goal))
        await rpc.call(self._stub.SetGoal, request, CONTROL_SECONDS)
