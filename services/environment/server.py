"""EnvironmentService: opens, steps and closes episodes, and nothing else."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc

from services.environment.environment import HasProcesses
from services.environment.episodes import OpenEpisodes
from services.environment.hosts import make_host, section_of
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.store import open_store
from trimaran.telemetry.series import ENVIRONMENT_EPISODES, ENVIRONMENT_PROCESSES
from trimaran.trust.allowed import Allowed
from trimaran.types import Usage
from trimaran.v1 import environment_pb2 as pb
from trimaran.v1 import environment_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class EnvironmentServicer(environment_pb2_grpc.EnvironmentServiceServicer):
    def __init__(self, episodes: OpenEpisodes) -> None:
        self._episodes = episodes

    async def Open(
        self, request: pb.OpenRequest, context: grpc.aio.ServicerContext
    ) -> pb.OpenResponse:
        prompt, epoch = wire.decode_prompt(request.prompt), request.caller.epoch
        opening = await self._episodes.open(request.episode, prompt, request.seed, epoch)
        return wire.encode_opening(opening)

    async def Step(
        self, request: pb.StepRequest, context: grpc.aio.ServicerContext
    ) -> pb.StepResponse:
        message, epoch = wire.decode_message(request.message), request.caller.epoch
        usage = Usage(request.num_prompt_tokens, request.num_tokens)
        reply = await self._episodes.step(
            request.episode, request.turn, message, request.finish_reason, epoch, usage
        )
        return wire.encode_reply(reply)

    async def Close(
        self, request: pb.CloseRequest, context: grpc.aio.ServicerContext
    ) -> pb.CloseResponse:
        await self._episodes.close(request.episode)
        return pb.CloseResponse()


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Runs until cancelled. Raises InputError for an environment that cannot be used or a port in use."""
    addresses = config.endpoints.environment
    if index >= len(addresses):
        raise InputError(
            f"endpoints.environment[{index}]: missing; give the host:port to listen at"
        )
    section = section_of(config)
    async with AsyncExitStack() as stack:
        store = await open_store(run.store_url)
        stack.push_async_callback(store.close)
        host = make_host(config, Allowed.from_environment(), run, index)
        await stack.enter_async_context(host)
        episodes = await stack.enter_async_context(OpenEpisodes(host, section))
        add = environment_pb2_grpc.add_EnvironmentServiceServicer_to_server
        service = rpc.service(pb.DESCRIPTOR, add, EnvironmentServicer(episodes))
        server = rpc.Server(addresses[index], [service], store.newest_epoch, run.trust)
        server.metrics.show(ENVIRONMENT_EPISODES, lambda: episodes.num_open)
        if isinstance(host, HasProcesses):
            playing = host
            server.metrics.show(ENVIRONMENT_PROCESSES, lambda: playing.num_processes)
        try:
            await server.start()
            await asyncio.get_running_loop().create_future()
        finally:
            await server.stop()
