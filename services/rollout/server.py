"""The rollout service: one replica, one engine.

    Generate ──▶ check ──▶ Engine.generate ──▶ Opened, SegmentChunk…, Finished
                                ▲
    StageWeights ──▶ WeightReceiver ──▶ shadow        (generation goes on)
    CommitWeights ──────────────────────┴──▶ Engine.load_weights ──▶ live

A replica starts without a live version and registers itself with weight sync,
which brings it one. Staging that fails leaves the live version as it was; a
load that fails leaves none, until a later one succeeds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from services.rollout.engine import Chunk, Ended, Engine, Event, GenerationRequest, create_engine
from services.rollout.life import with_signs_of_life
from services.rollout.registration import register
from trimaran import rpc, wire
from trimaran.config import RunConfig
from trimaran.device import pick
from trimaran.errors import (
    BehindError,
    InputError,
    OutOfOrderError,
    PromptTooLongError,
    TransferError,
)
from trimaran.types import Caller, Origin, PolicyVersion, Replica, Segment, VersionId
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc

if TYPE_CHECKING:
    from services.weight_sync.receiver import WeightReceiver

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_SECONDS = 1.0
"""How often the engine is asked whether it lives."""
SIGNS_PER_DEADLINE = 4
"""Signs of life within one idle timeout, while a request waits for its turn."""


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(
        self, name: str, config: RunConfig, engine: Engine, receiver: WeightReceiver
    ) -> None:
        self._name = name
        self._config = config
        self._engine = engine
        self._receiver = receiver
        self._live: PolicyVersion | None = None
        self._updating = asyncio.Lock()
        self._num_events = 0

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rollout_pb2.GenerateResponse]:
        self._check_version(wire.decode_version(request.min_version))
        generation, ended = self._prepare(request)
        prompt_token_ids = wire.encode_token_ids(generation.prompt_token_ids)
        opened = rollout_pb2.Opened(prompt_token_ids=prompt_token_ids)
        yield rollout_pb2.GenerateResponse(opened=opened)
        tokens = {
            continuation.index: list(wire.decode_token_ids(continuation.token_ids))
            for continuation in request.continuations
        }
        for end in ended:
            yield self._finished(end, tokens[end.index])
        if not generation.starts:
            return
        async with aclosing(self._events(generation)) as events:
            async for event in events:
                if event is None:
                    yield rollout_pb2.GenerateResponse()
                elif isinstance(event, Chunk):
                    tokens.setdefault(event.index, []).extend(event.token_ids_T)
                    yield self._chunk(event)
                else:
                    yield self._finished(event, tokens[event.index])

    def _check_version(self, wanted: VersionId) -> None:
        if self._live is None:
            raise BehindError(f"{self._name} holds no version yet; weight sync must bring one")
        if self._live.version < wanted:
            raise BehindError(f"{self._name} holds {self._live.version}, asked for {wanted}")

    def _prepare(
        self, request: rollout_pb2.GenerateRequest
    ) -> tuple[GenerationRequest, list[Ended]]:
        """What is to be made, and the continuations that had ended already."""
        limits = self._config.rollout
        sampling = wire.decode_sampling(request.sampling)
        if not 1 <= sampling.max_tokens <= limits.max_tokens or sampling.num_samples < 1:
            raise InputError(
                f"sampling: {sampling.num_samples} samples of {sampling.max_tokens} tokens;"
                f" at least one of each, and rollout.max_tokens ({limits.max_tokens}) at most"
            )
        prompt = wire.decode_prompt(request.prompt)
        prompt_token_ids = self._engine.tokenize(prompt.messages)
        if not 0 < len(prompt_token_ids) <= limits.max_prompt_tokens:
            raise PromptTooLongError(
                f"too long: {len(prompt_token_ids)} tokens; rollout.max_prompt_tokens is"
                f" {limits.max_prompt_tokens}"
                if prompt_token_ids
                else "the chat template makes no token of it"
            )
        starts: dict[int, tuple[int, ...]] = dict.fromkeys(range(sampling.num_samples), ())
        ended: list[Ended] = []
        if request.continuations:
            starts = {c.index: wire.decode_token_ids(c.token_ids) for c in request.continuations}
            for index, start in list(starts.items()):
                if start and start[-1] in self._engine.stop_token_ids:
                    ended.append(Ended(index, "stop"))
                elif len(start) >= sampling.max_tokens:
                    ended.append(Ended(index, "length"))
                else:
                    continue
                del starts[index]
        return GenerationRequest(request.number, prompt_token_ids, sampling, starts), ended

    def _events(self, generation: GenerationRequest) -> AsyncGenerator[Event | None, None]:
        """The engine's events; None is a sign of life."""
        return with_signs_of_life(
            self._counted(generation),
            self._config.rollout.idle_timeout / SIGNS_PER_DEADLINE,
            lambda: self._num_events,
        )

    async def _counted(self, generation: GenerationRequest) -> AsyncGenerator[Event, None]:
        async with aclosing(self._engine.generate(generation)) as events:
            async for event in events:
                self._num_events += 1
                yield event

    def _chunk(self, chunk: Chunk) -> rollout_pb2.GenerateResponse:
        end = chunk.start + len(chunk.token_ids_T)
        segment = Segment(chunk.start, end, chunk.version, Origin.GENERATED, self._name)
        return rollout_pb2.GenerateResponse(
            chunk=rollout_pb2.SegmentChunk(
                index=chunk.index,
                segment=wire.encode_segment(segment),
                token_ids=wire.encode_token_ids(chunk.token_ids_T),
                logprobs=wire.encode_logprobs(chunk.logprobs_T),
            )
        )

    def _finished(self, end: Ended, token_ids: list[int]) -> rollout_pb2.GenerateResponse:
        text = self._engine.detokenize(token_ids)
        return rollout_pb2.GenerateResponse(
            finished=rollout_pb2.Finished(
                index=end.index, finish_reason=end.finish_reason, text=text
            )
        )

    async def StageWeights(
        self, request: rollout_pb2.StageWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.StageWeightsResponse:
        started = time.monotonic()
        root = await asyncio.to_thread(
            self._receiver.stage,
            wire.decode_policy(request.version),
            wire.decode_manifest(request.manifest),
            wire.decode_transfer_group(request.group),
            request.rank,
            request.bucket_bytes,
            request.timeout_seconds,
        )
        return rollout_pb2.StageWeightsResponse(root=root, seconds=time.monotonic() - started)

    async def CommitWeights(
        self, request: rollout_pb2.CommitWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.CommitWeightsResponse:
        version = wire.decode_policy(request.version)
        # Shielded: a caller that gives up must not leave half a load behind.
        pause = await asyncio.shield(asyncio.ensure_future(self._commit(version)))
        return rollout_pb2.CommitWeightsResponse(pause_seconds=pause)

    async def _commit(self, version: PolicyVersion) -> float:
        async with self._updating:
            live = self._live
            if live is not None and (live.version, live.root) == (version.version, version.root):
                return 0.0
            staged = self._receiver.staged
            if staged is None or (staged.version.version, staged.version.root) != (
                version.version,
                version.root,
            ):
                raise OutOfOrderError(f"{version.version} is not staged on {self._name}")
            try:
                pause = await self._engine.load_weights(staged.shadow, version.version)
            except TransferError:
                self._live = None
                raise
            self._live = version
            del staged
            await asyncio.to_thread(self._receiver.discard, version.version)
            logger.info("version %s is live after a pause of %.3f s", version.version, pause)
            return pause

    async def AbortWeights(
        self, request: rollout_pb2.AbortWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.AbortWeightsResponse:
        version = wire.decode_version(request.version)
        # It interrupts a stage under way, but waits for a commit, which reads the shadow.
        async with self._updating:
            await asyncio.to_thread(self._receiver.discard, version)
        return rollout_pb2.AbortWeightsResponse()

    async def GetReplica(
        self, request: rollout_pb2.GetReplicaRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.GetReplicaResponse:
        return rollout_pb2.GetReplicaResponse(
            name=self._name,
            live=wire.encode_policy(self._live) if self._live else None,
            num_running=self._engine.num_running,
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._receiver.close)


async def serve(config: RunConfig, run_folder: Path, index: int = 0) -> None:
    """Serve replica `index` until cancelled. Raises when the engine dies or nobody registers us."""
    device = pick(config.rollout.device)
    engine = create_engine(config, device)
    # Before gRPC starts its threads, which a forked engine process would not survive.
    await engine.start()
    from services.weight_sync.receiver import WeightReceiver

    servicer = RolloutServicer(f"rollout-{index}", config, engine, WeightReceiver(device))
    try:
        server = rpc.Server(config.endpoints.rollout[index], [add_service(servicer)])
        await server.start()
        try:
            replica = Replica(f"rollout-{index}", server.address)
            await register(config, Caller(run_folder.name, 0), replica)
            while True:
                engine.check()
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            await server.stop()
            await servicer.close()
    finally:
        await engine.close()


def add_service(servicer: RolloutServicer) -> Callable[[Any], str]:
    """For `rpc.Server`."""

    def add(server: Any) -> str:
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
        return rollout_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name

    return add
