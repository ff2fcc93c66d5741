"""What a call's work waits for is reported to its caller in time; work that only takes long is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.controller.virtual_time import now, run_virtually
from tests.trimaran.run.test_directory import serving
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.host.call_waits import answering_within, locked, waiting_for
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire import rpc

Work = Callable[[], Awaitable[None]]


class Slow(run_pb2_grpc.RunServiceServicer):
    def __init__(self, work: Work) -> None:
        self._work = work

    async def GetRun(self, request: Any, context: Any) -> run_pb2.GetRunResponse:
        await self._work()
        return run_pb2.GetRunResponse()


def ask(work: Work, timeout: float) -> None:
    async def body() -> None:
        add = run_pb2_grpc.add_RunServiceServicer_to_server
        service = rpc.service(run_pb2.DESCRIPTOR, add, Slow(work))
        async with serving(service) as address, rpc.connect(address) as channel:
            stub: Any = run_pb2_grpc.RunServiceStub(channel)
            await rpc.call(stub.GetRun, run_pb2.GetRunRequest(), timeout)

    asyncio.run(asyncio.wait_for(body(), 60))


async def away(seconds: float = 3600.0) -> None:
    with waiting_for("the store redis://host:6379/0") as wait:
        wait.why = "connection refused"
        await asyncio.sleep(seconds)


def test_a_caller_hears_what_is_waited_for_before_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the deadline were nearer than it is: the answer has time for its way on a busy machine."""
    reported: list[float] = []

    def nearer(seconds: float) -> AbstractAsyncContextManager[None]:
        reported.append(seconds)
        return answering_within(0.5)

    monkeypatch.setattr(rpc, "answering_within", nearer)
    why = "the store redis://host:6379/0 does not answer .connection refused."
    with pytest.raises(UnavailableError, match=why):
        ask(away, timeout=50.0)
    assert len(reported) == 1 and reported[0] <= 50.0


def test_work_that_takes_long_and_waits_for_nothing_has_its_whole_time() -> None:
    async def long() -> float:
        async with answering_within(3.0):
            await away(0.01)
            await asyncio.sleep(2.9)
            await away(0.01)
        return now()

    assert run_virtually(long()) == pytest.approx(2.92)
    with pytest.raises(DeadlineError, match="no answer within 1 s"):
        ask(lambda: asyncio.sleep(3600), timeout=1.0)


async def test_who_holds_a_lock_and_waits_is_named_to_those_behind() -> None:
    lock = asyncio.Lock()

    async def hold() -> None:
        async with locked(lock, "unused"):
            await away()

    async def behind() -> None:
        async with answering_within(0.5), locked(lock, "the manager's store"):
            raise AssertionError("nobody has the lock twice")

    holder = asyncio.create_task(hold())
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="the manager's store does not answer"):
        await behind()
    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    async with locked(lock, "free again"):
        pass


async def test_a_task_that_outlives_its_call_is_left_alone() -> None:
    async with answering_within(0.2):
        task = asyncio.create_task(away(0.4))
    await task
