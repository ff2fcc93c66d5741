"""Places: where processes answer, looked up again when a call finds nobody there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.extending.memory_store import MemoryStore
from tests.trimaran.wire.fakes import GROUP, FakeReward, FakeRun, reward_service
from trimaran.clients import RewardClient
from trimaran.errors import DeadlineError, UnavailableError, UnreachableError
from trimaran.run.directory import Directory
from trimaran.run.runs import endpoints_key
from trimaran.trust.access import Trust
from trimaran.types import Caller
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire import rpc

CALLER = Caller("run", 1)
SECONDS = 10.0


@asynccontextmanager
async def serving(service: rpc.Service, trust: Trust | None = None) -> AsyncGenerator[str]:
    server = rpc.Server("127.0.0.1:0", [service], trust=trust or Trust())
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


async def until_answered(call: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await call()
            except (UnavailableError, DeadlineError):
                await asyncio.sleep(0.05)


async def test_a_service_that_moves_is_found_at_its_new_address() -> None:
    store, old, new = MemoryStore(), FakeReward(), FakeReward()
    directory = Directory(store, "run")
    async with RewardClient(directory.place("reward"), CALLER) as client:
        with pytest.raises(UnavailableError, match="reward: has not said yet"):
            await client.score_group(GROUP, SECONDS)
        for servicer in (old, new):
            async with serving(reward_service(servicer)) as address:
                await store.put(endpoints_key("run"), {"reward": address})
                await until_answered(lambda: client.score_group(GROUP, SECONDS))
                assert client.address == address
    assert len(old.clients) == len(new.clients) == 1


async def test_the_store_is_not_asked_while_calls_are_answered() -> None:
    asked: list[str] = []

    class Silent(MemoryStore):
        async def get(self, key: str) -> Any:
            asked.append(key)
            return None

    async with serving(reward_service(FakeReward())) as address:
        place = Directory(Silent(), "run", {"reward": address}).place("reward")
        async with RewardClient(place, CALLER) as client:
            for _ in range(3):
                await client.score_group(GROUP, SECONDS)
            await asyncio.sleep(0)  # a look would be a task of its own
    assert asked == []


async def test_who_has_the_port_of_a_service_that_moved_is_not_taken_for_it() -> None:
    """Another run's service, which knows another token, and another kind of service."""
    store, ours = MemoryStore(), Trust("t" * 64)
    run = rpc.service(run_pb2.DESCRIPTOR, run_pb2_grpc.add_RunServiceServicer_to_server, FakeRun())
    async with (
        serving(reward_service(FakeReward()), Trust("u" * 64)) as foreign,
        serving(run, ours) as other,
        serving(reward_service(FakeReward()), ours) as right,
    ):
        for address in (foreign, other):
            await store.put(endpoints_key("run"), {"reward": address})
            place = Directory(store, "run", {"reward": address}).place("reward")
            async with RewardClient(place, CALLER, ours) as client:
                with pytest.raises(UnreachableError, match="another process answers at"):
                    await client.score_group(GROUP, SECONDS)
                await store.put(endpoints_key("run"), {"reward": right})
                await until_answered(lambda: client.score_group(GROUP, SECONDS))
