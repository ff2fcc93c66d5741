"""The controller's part that plays episodes, with a stand-in for weight sync in the same process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from google.protobuf.descriptor import FileDescriptor

from benchmarks.control.stand_ins import INSTANT, Pool, Shape, WeightSync
from services.controller.episodes.maker import EpisodeMaker
from services.controller.episodes.room import EnvironmentRoom
from services.controller.groups import GroupMaker
from services.controller.proofs import ProofCheck
from services.controller.router import Router
from trimaran.clients import EnvironmentClient, RolloutClient, WeightSyncClient
from trimaran.config import RunConfig
from trimaran.types import Caller, Replica
from trimaran.v1 import weight_sync_pb2, weight_sync_pb2_grpc
from trimaran.wire import rpc

CALLER = Caller("run", 1)


@asynccontextmanager
async def episode_maker(
    config: RunConfig, replica: Replica, environment: str
) -> AsyncGenerator[EpisodeMaker]:
    """`environment`: the address of the only process of its service."""
    pool = Pool(Shape(replicas=1, samples=1, tokens=1, chunks=1))
    pool.replicas = (replica,)
    async with AsyncExitStack() as stack:
        add = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
        serving = served(weight_sync_pb2.DESCRIPTOR, add, WeightSync(pool, INSTANT))
        address = await stack.enter_async_context(serving)
        weight_sync = await stack.enter_async_context(WeightSyncClient(address, CALLER))
        client = await stack.enter_async_context(EnvironmentClient(environment, CALLER))
        router = Router(
            weight_sync,
            connect=lambda at: RolloutClient(at, CALLER),
            max_concurrency=config.rollout.max_concurrency,
            patience=config.outage_timeout,
            on_lost=_ignore,
            on_back=_ignore,
            on_busy=_ignore,
        )
        stack.push_async_callback(router.close)
        await router.update(await weight_sync.get_routing())
        turns = GroupMaker(router, ProofCheck(weight_sync, config.outage_timeout), config)
        assert config.environment
        room = EnvironmentRoom([client], config.environment.max_episodes)
        yield EpisodeMaker(turns, room, config, on_retry=_ignore)


@asynccontextmanager
async def served(
    descriptor: FileDescriptor, add: Callable[[Any, Any], None], servicer: Any
) -> AsyncGenerator[str]:
    """A service at an address of its own."""
    server = rpc.Server("127.0.0.1:0", [rpc.service(descriptor, add, servicer)])
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


def _ignore(*_: object) -> None: ...
