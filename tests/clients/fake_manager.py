"""A manager that serves `FakeRuns` over gRPC, and can be told to fail."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from typing import Any

from tests.clients.fake_runs import FakeRuns
from trimaran import rpc, run_wire
from trimaran.errors import UnavailableError
from trimaran.network import LOOPBACK
from trimaran.trust import NO_TRUST, Trust
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc


class FakeManager(run_pb2_grpc.RunServiceServicer):
    """`failures`: this many calls of a method are carried out, and then fail. `break_behind`: after
    the event or line of this number a stream breaks, once."""

    def __init__(self, runs: FakeRuns | None = None) -> None:
        self.runs = runs or FakeRuns()
        self.failures: dict[str, int] = {}
        self.break_behind = 0
        self.tokens: list[str | None] = []
        self.num_calls: dict[str, int] = {}

    def _count(self, method: str, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self.tokens.append(metadata.get("authorization"))
        self.num_calls[method] = self.num_calls.get(method, 0) + 1

    def _fail(self, method: str) -> None:
        if self.failures.get(method, 0) > 0:
            self.failures[method] -= 1
            raise UnavailableError("the answer was lost")

    async def CreateRun(self, request: pb.CreateRunRequest, context: Any) -> pb.CreateRunResponse:
        self._count("CreateRun", context)
        run = await self.runs.create(
            None, request.request_id, request.config, request.overrides, request.priority
        )
        self._fail("CreateRun")
        return pb.CreateRunResponse(run=run_wire.encode_run(run))

    async def GetRun(self, request: pb.GetRunRequest, context: Any) -> pb.GetRunResponse:
        self._count("GetRun", context)
        self._fail("GetRun")
        answer = pb.GetRunResponse(
            run=run_wire.encode_run(await self.runs.get(None, request.run_id))
        )
        if request.with_config:
            answer.config = json.dumps(await self.runs.config(None, request.run_id))
        return answer

    async def ListRuns(self, request: pb.ListRunsRequest, context: Any) -> pb.ListRunsResponse:
        self._count("ListRuns", context)
        states = [run_wire.STATES[state] for state in request.states]
        runs, token = await self.runs.list(
            None, states, request.owner, request.page_size, request.page_token
        )
        return pb.ListRunsResponse(
            runs=[run_wire.encode_run(run) for run in runs], next_page_token=token
        )

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Any
    ) -> AsyncIterator[pb.WatchRunResponse]:
        self._count("WatchRun", context)
        after, follow = request.after_sequence, not request.until_now
        async for event in self.runs.events(None, request.run_id, after, follow):
            yield pb.WatchRunResponse(event=run_wire.encode_event(event))
            if event.sequence == self.break_behind:
                self.break_behind = 0
                raise UnavailableError("the stream broke")

    async def PauseRun(self, request: pb.PauseRunRequest, context: Any) -> pb.PauseRunResponse:
        self._count("PauseRun", context)
        run = await self.runs.pause(None, request.run_id)
        self._fail("PauseRun")
        return pb.PauseRunResponse(run=run_wire.encode_run(run))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Any) -> pb.ResumeRunResponse:
        run = await self.runs.resume(None, request.run_id)
        return pb.ResumeRunResponse(run=run_wire.encode_run(run))

    async def CancelRun(self, request: pb.CancelRunRequest, context: Any) -> pb.CancelRunResponse:
        run = await self.runs.cancel(None, request.run_id)
        return pb.CancelRunResponse(run=run_wire.encode_run(run))

    async def DeleteRun(self, request: pb.DeleteRunRequest, context: Any) -> pb.DeleteRunResponse:
        await self.runs.delete(None, request.run_id)
        return pb.DeleteRunResponse()

    async def ScaleRun(self, request: pb.ScaleRunRequest, context: Any) -> pb.ScaleRunResponse:
        run = await self.runs.scale(
            None, request.run_id, request.min_replicas, request.max_replicas
        )
        return pb.ScaleRunResponse(run=run_wire.encode_run(run))

    async def ListCheckpoints(
        self, request: pb.ListCheckpointsRequest, context: Any
    ) -> pb.ListCheckpointsResponse:
        checkpoints = await self.runs.checkpoints(None, request.run_id)
        return pb.ListCheckpointsResponse(
            checkpoints=[run_wire.encode_checkpoint(each) for each in checkpoints]
        )

    async def GetSamples(
        self, request: pb.GetSamplesRequest, context: Any
    ) -> pb.GetSamplesResponse:
        which = request.WhichOneof("which")
        validation = request.validation_step if which == "validation_step" else None
        trained = request.trained_step if which == "trained_step" else None
        samples = await self.runs.samples(
            None, request.run_id, validation, trained, request.limit, request.offset
        )
        return run_wire.encode_samples(samples)

    async def GetLogs(
        self, request: pb.GetLogsRequest, context: Any
    ) -> AsyncIterator[pb.GetLogsResponse]:
        processes = await self.runs.log_names(None, request.run_id)
        after = request.after_position if request.HasField("after_position") else None
        async for lines, position in self.runs.logs(
            None, request.run_id, request.process, request.lines, request.follow, after
        ):
            yield pb.GetLogsResponse(lines=lines, processes=processes, position=position)
            processes = ()
            if self.break_behind and position >= self.break_behind:
                self.break_behind = 0
                raise UnavailableError("the stream broke")

    async def GetLedger(self, request: pb.GetLedgerRequest, context: Any) -> pb.GetLedgerResponse:
        if request.WhichOneof("question") == "group":
            answer = await self.runs.ledger_group(None, request.run_id, request.group)
        else:
            answer = await self.runs.ledger_verify(None, request.run_id)
        self._fail("GetLedger")
        return run_wire.encode_ledger(answer)


async def serve(
    manager: FakeManager, address: str = "127.0.0.1:0", trust: Trust = NO_TRUST
) -> rpc.Server:
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(pb.DESCRIPTOR, add, manager)], trust=trust)
    await server.start()
    return server


class ThreadedManager:
    """A manager on a thread of its own, for clients that block. `restart` makes it listen anew."""

    def __init__(self) -> None:
        self.manager, self.address = FakeManager(), LOOPBACK.free_address()
        self.runs = self.manager.runs
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server: rpc.Server | None = None

    def start(self) -> None:
        self._server = self._run(serve(self.manager, self.address))

    def stop(self) -> None:
        if self._server:
            self._run(self._server.stop())
            self._server = None

    def do(self, action: Any, *arguments: Any, **options: Any) -> None:
        """In the manager's loop."""

        async def call() -> None:
            action(*arguments, **options)

        self._run(call())

    def after(self, seconds: float, action: Any, *arguments: Any, **options: Any) -> None:
        self._loop.call_soon_threadsafe(
            lambda: self._loop.call_later(seconds, lambda: action(*arguments, **options))
        )

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


@contextmanager
def managing() -> Generator[ThreadedManager]:
    manager = ThreadedManager()
    manager.start()
    try:
        yield manager
    finally:
        manager.close()
