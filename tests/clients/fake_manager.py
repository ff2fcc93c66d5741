"""A manager that serves `FakeRuns` over gRPC, and can be made to fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from services.manager.server import RunServicer
from tests.clients.fake_runs import FakeRuns
from trimaran.errors import UnavailableError
from trimaran.run.network import LOOPBACK
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc
from trimaran.wire import rpc


class FakeManager(RunServicer):
    """`failures`: this many calls of a method are carried out, and then fail. `break_behind`: after
    the event or the position of a log with this number a stream breaks, once."""

    def __init__(self) -> None:
        self.runs: Any = FakeRuns()
        super().__init__(self.runs)
        self.failures: dict[str, int] = {}
        self.break_behind = 0
        self.tokens: list[str | None] = []
        self.num_calls: dict[str, int] = {}

        for method in ("CreateRun", "GetRun"):
            setattr(self, method, self._answering(method, getattr(self, method)))

    def _count(self, method: str, context: Any) -> None:
        self.tokens.append(dict(context.invocation_metadata()).get("authorization"))
        self.num_calls[method] = self.num_calls.get(method, 0) + 1

    def _answering(self, method: str, call: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            self._count(method, context)
            answered = await call(request, context)
            if self.failures.get(method, 0) > 0:
                self.failures[method] -= 1
                raise UnavailableError("the answer was lost")
            return answered

        return answer

    async def WatchRun(self, request: Any, context: Any) -> AsyncIterator[pb.WatchRunResponse]:
        self._count("WatchRun", context)
        async for answer in super().WatchRun(request, context):
            yield answer
            self._break(answer.event.sequence)

    async def GetLogs(self, request: Any, context: Any) -> AsyncIterator[pb.GetLogsResponse]:
        async for answer in super().GetLogs(request, context):
            yield answer
            self._break(answer.position)

    def _break(self, place: int) -> None:
        if self.break_behind and place >= self.break_behind:
            self.break_behind = 0
            raise UnavailableError("the stream broke")


async def serve(
    manager: FakeManager, address: str = "127.0.0.1:0", trust: Trust = NO_TRUST
) -> rpc.Server:
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    server = rpc.Server(address, [rpc.service(pb.DESCRIPTOR, add, manager)], trust=trust)
    await server.start()
    return server


class ThreadedManager:
    """A manager on a thread of its own, for clients that block. It may stop, and start again."""

    def __init__(self) -> None:
        self.manager, self.address = FakeManager(), LOOPBACK.free_address()
        self.runs = self.manager.runs
        self._loop = asyncio.new_event_loop()
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

    def after(self, seconds: float, action: Any, *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, action, *arguments)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    @contextmanager
    def running(self) -> Generator[ThreadedManager]:
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        self.start()
        try:
            yield self
        finally:
            self.stop()
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join(30)
            self._loop.close()


def managing() -> AbstractContextManager[ThreadedManager]:
    return ThreadedManager().running()
