"""RunService: watch and cancel a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from trimaran import rpc, run_wire
from trimaran.clients.base import CONTROL_SECONDS, Client
from trimaran.runs import Run, RunEvent
from trimaran.trust import NO_TRUST, Trust
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc


class RunClient(Client):
    """Watches and cancels a run.

    Example:
        async with RunClient("127.0.0.1:7000") as client:
            async for event in client.watch_run():
                print(event.kind, event.run.step, event.values)
    """

    def __init__(self, address: str, run_id: str = "", trust: Trust = NO_TRUST) -> None:
        super().__init__(address, trust)
        self._stub: Any = run_pb2_grpc.RunServiceStub(self._channel)
        self._run_id = run_id

    async def get_run(self) -> Run:
        request = pb.GetRunRequest(run_id=self._run_id)
        answer: pb.GetRunResponse = await rpc.call(self._stub.GetRun, request, CONTROL_SECONDS)
        return run_wire.decode_run(answer.run)

    async def cancel_run(self) -> Run:
        """The run ends after the step under way, with its checkpoint and summary."""
        request = pb.CancelRunRequest(run_id=self._run_id)
        answer: pb.CancelRunResponse = await rpc.call(
            self._stub.CancelRun, request, CONTROL_SECONDS
        )
        return run_wire.decode_run(answer.run)

    async def watch_run(
        self, after_sequence: int = 0, idle_timeout: float = 3600.0
    ) -> AsyncIterator[RunEvent]:
        """Every event behind `after_sequence`, until the run ends.

        Raises DeadlineError after `idle_timeout` seconds without one.
        """
        request = pb.WatchRunRequest(run_id=self._run_id, after_sequence=after_sequence)
        async for response in rpc.stream(self._stub.WatchRun, request, idle_timeout):
            yield run_wire.decode_event(response.event)
