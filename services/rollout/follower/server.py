"""`trimaran serve follower`: a replica's part on a further host.

Its engine's workers take their orders from the first host's process, by the engine's own means. What
that process asks of us, by gRPC, is a shadow in this host's memory, from which these workers load.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import grpc

from services.rollout.deadlines import until_first_end
from services.rollout.engine import CHECK_SECONDS, create_engine
from services.rollout.hosts import HostMeeting, HostPlace
from trimaran.config import RunConfig
from trimaran.errors import OutOfOrderError, TransferError
from trimaran.host.device import pick
from trimaran.host.shared_memory import (
    make_socket_folder,
    note_mapped,
    note_of,
    noting,
    remove_left,
)
from trimaran.run.context import RunContext
from trimaran.run.environment import process_name
from trimaran.run.network import check_tensors, find_host
from trimaran.store import open_store
from trimaran.trust.tls import socket_tls
from trimaran.v1 import follower_pb2, follower_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

if TYPE_CHECKING:
    from weights.receiving.receiver import WeightReceiver


class FollowerServicer(follower_pb2_grpc.FollowerServiceServicer):
    def __init__(self, name: str, meeting: str, receiver: WeightReceiver) -> None:
        """`meeting`: of the processes that belong together; another's calls are refused."""
        self._name, self._meeting, self._receiver = name, meeting, receiver

    async def StageFollower(
        self, request: follower_pb2.StageFollowerRequest, context: grpc.aio.ServicerContext
    ) -> follower_pb2.StageFollowerResponse:
        self._check(request.meeting)
        version = wire.decode_policy(request.version)
        found = await asyncio.to_thread(
            self._receiver.stage,
            version,
            wire.decode_manifest(request.manifest),
            [wire.decode_source(source) for source in request.sources],
            wire.decode_limits(request.limits),
            request.attempt,
        )
        staged = self._receiver.staged
        if staged is None or staged.version != version:
            raise TransferError(f"{self._name}: {version.version} was given up at once")
        return follower_pb2.StageFollowerResponse(
            staged=wire.encode_staged(found), path=staged.shadow.path
        )

    async def KeepFollower(
        self, request: follower_pb2.KeepFollowerRequest, context: grpc.aio.ServicerContext
    ) -> follower_pb2.KeepFollowerResponse:
        self._check(request.meeting)
        await asyncio.to_thread(self._receiver.keep, wire.decode_version(request.version))
        return follower_pb2.KeepFollowerResponse()

    async def AbortFollower(
        self, request: follower_pb2.AbortFollowerRequest, context: grpc.aio.ServicerContext
    ) -> follower_pb2.AbortFollowerResponse:
        self._check(request.meeting)
        version = wire.decode_version(request.version)
        await asyncio.to_thread(self._receiver.discard, version, request.attempt)
        return follower_pb2.AbortFollowerResponse()

    def _check(self, meeting: str) -> None:
        if meeting != self._meeting:
            raise OutOfOrderError(
                f"{self._name}: belongs to another meeting of the replica's hosts than the caller"
            )


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Serve follower `index` until cancelled.

    Raises LeftBehindError when another process of the replica was started again, and when a worker of
    the engine here is dead.
    """
    host = find_host(config.network)
    check_tensors(config, run.trust, host)
    name = process_name("follower", index)
    shared = note_of(run.folder, name)
    # Before the first thread, as in the replica's own process.
    remove_left(shared)
    os.environ["VLLM_RPC_BASE_PATH"] = str(make_socket_folder(shared))
    meeting = HostMeeting(config, run.run_id, "follower", index)
    async with AsyncExitStack() as stack:
        stack.callback(remove_left, shared, 0.0)
        store = await open_store(run.store_url)
        stack.push_async_callback(store.close)
        place = await meeting.follow(store)
        work = _work(config, run, index, place, stack)
        await until_first_end(work, meeting.until_broken(store))


async def _work(
    config: RunConfig, run: RunContext, index: int, place: HostPlace, stack: AsyncExitStack
) -> None:
    """For ever, once the replica's hosts have met. Raises when a worker of the engine here is dead."""
    device, name = pick(config.rollout.device), process_name("follower", index)
    engine = create_engine(config, device, place)
    stack.push_async_callback(engine.close)
    shared = note_of(run.folder, name)
    with noting(shared):
        await engine.follow()
    note_mapped(shared)
    # After the engine, whose processes may be forked.
    from weights.receiving.receiver import WeightReceiver

    host, tls = find_host(config.network), socket_tls(run.trust)
    receiver = WeightReceiver(device, 0, config.weight_sync, host=host, tls=tls)
    stack.push_async_callback(asyncio.to_thread, receiver.close)
    await asyncio.to_thread(receiver.start)
    service = follower_service(FollowerServicer(name, place.meeting, receiver))
    server = rpc.Server(config.endpoints.rollout[index], [service], trust=run.trust)
    stack.push_async_callback(server.stop)
    await server.start()
    while True:
        engine.check()
        await asyncio.sleep(CHECK_SECONDS)


def follower_service(servicer: FollowerServicer) -> rpc.Service:
    """For `rpc.Server`."""
    add = follower_pb2_grpc.add_FollowerServiceServicer_to_server
    return rpc.service(follower_pb2.DESCRIPTOR, add, servicer)
