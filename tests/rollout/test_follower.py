"""A follower over gRPC, and who may be one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.rollout.engine import create_engine
from services.rollout.follower.server import FollowerServicer, follower_service
from services.rollout.hosts import HostPlace
from tests.configs import configure
from tests.weight_sync.ends import (
    CPU,
    by_relay,
    from_memory,
    limits_of,
    make_snapshot,
    stage,
    started,
    version_of,
)
from trimaran.clients import FollowerClient
from trimaran.errors import InputError, OutOfOrderError, TransferError
from trimaran.types import Transport, VersionId
from trimaran.wire import rpc
from weights.receiving.receiver import WeightReceiver


@asynccontextmanager
async def served(receiver: WeightReceiver, meeting: str = "m") -> AsyncIterator[FollowerClient]:
    """`meeting`: of the caller; the follower's is m."""
    service = follower_service(FollowerServicer("follower-0", "m", receiver))
    server = rpc.Server("127.0.0.1:0", [service])
    await server.start()
    try:
        async with FollowerClient("follower-0", server.address, meeting) as client:
            yield client
    finally:
        await server.stop()


def test_a_follower_takes_a_version_from_the_first_host_and_keeps_or_forgets_it() -> None:
    snapshot = make_snapshot()
    version, zero_one = version_of(snapshot), VersionId(0, 1)

    async def body(first: WeightReceiver, own: WeightReceiver) -> None:
        async with served(own) as client:
            reported = version, snapshot.manifest, [by_relay(snapshot, first.peer)], limits_of()
            staged, path = await client.stage(*reported, "a")
            assert staged.root == version.root and staged.num_blocks == 9
            assert staged.bytes_by_transport.keys() == {Transport.RELAY}
            assert own.staged and own.staged.shadow.path == path
            await client.abort(zero_one, "another try")
            assert own.staged
            await client.abort(zero_one, "a")
            assert own.staged is None
            await client.stage(*reported, "b")
            await client.keep(zero_one)
            assert own.held and own.held.version == version
            with pytest.raises(TransferError):
                await client.stage(version, snapshot.manifest, [], limits_of(), "c")

    with started(receivers=2) as ([sender], [first, own]):
        sender.hold(snapshot)
        stage(first, snapshot, from_memory(snapshot))
        asyncio.run(body(first, own))


def test_who_belongs_to_another_meeting_is_refused() -> None:
    snapshot = make_snapshot()

    async def body(own: WeightReceiver) -> None:
        async with served(own, meeting="an earlier one") as client:
            calls: list[Any] = [
                client.stage(version_of(snapshot), snapshot.manifest, [], limits_of(), "a"),
                client.keep(VersionId(0, 1)),
                client.abort(VersionId(0, 1), "a"),
            ]
            for call in calls:
                with pytest.raises(OutOfOrderError, match="another meeting"):
                    await call

    with started() as (_, [own]):
        asyncio.run(body(own))


def test_an_engine_of_one_host_is_refused_on_several() -> None:
    config = configure(rollout={"engine": "transformers", "tensor_parallel": 2, "hosts": 2})
    with pytest.raises(InputError, match=r"rollout\.engine transformers stands on one host"):
        create_engine(config, CPU, HostPlace(0, 2, "10.0.0.7:2000", "m"))
