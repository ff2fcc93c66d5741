"""The rollout service: one replica, one engine.

    Generate ──▶ check ──▶ Engine.generate ──▶ GenerateResponse…
                                ▲
    StageWeights ──▶ WeightReceiver ──▶ shadow        (generation goes on)
    CommitWeights ──────────────────────┴──▶ Engine.load_weights ──▶ live
    ReadBack ──▶ Engine.read_back ──▶ digests         (generation goes on)
    Sleep ──▶ Engine.sleep                            (the trainer has the devices; a commit wakes it)

A replica starts without a live version and registers itself with weight sync,
which brings it one. Staging that fails leaves the live version as it was; a
load that fails leaves none, until a later one succeeds. A replica on which none
succeeds for long ends, so that its process is started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial

import grpc

from services.rollout.deadlines import until_first_end
from services.rollout.engine import (
    CHECK_SECONDS,
    Chunk,
    Ended,
    Engine,
    Event,
    GenerationRequest,
    create_engine,
)
from services.rollout.hosts import ONE_HOST, HostMeeting, HostPlace
from services.rollout.life import with_signs_of_life
from services.rollout.preparation import Preparation, Prepared
from services.rollout.registration import deregister, stay_registered
from services.rollout.temperature import check_temperature
from services.rollout.weights import ReplicaWeights
from trimaran.clients import FollowerClient, Registration
from trimaran.config import RunConfig
from trimaran.errors import BehindError, InputError
from trimaran.host.device import pick
from trimaran.host.shared_memory import (
    make_socket_folder,
    note_mapped,
    note_of,
    noting,
    remove_left,
)
from trimaran.run.context import RunContext
from trimaran.run.device_turns import DeviceTurn, rollout_turn
from trimaran.run.directory import Directory, named_addresses
from trimaran.run.environment import followers_of, process_name
from trimaran.run.network import Host, check_tensors, find_host
from trimaran.store import open_store
from trimaran.telemetry import tracing
from trimaran.telemetry.series import ROLLOUT_PAUSE, ROLLOUT_RUNNING, ROLLOUT_TOKENS
from trimaran.trust.tls import socket_tls
from trimaran.types import Caller, Prefix, Replica, Segment, VersionId
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc
from trimaran.wire import health_note, rpc
from trimaran.wire import messages as wire

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0
"""For the groups under way to be taken elsewhere."""
IDLE_POLL_SECONDS = 0.05
SIGNS_PER_DEADLINE = 4
"""Signs of life within one idle timeout, while a request waits for its turn."""


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(
        self, name: str, config: RunConfig, engine: Engine, weights: ReplicaWeights
    ) -> None:
        self._name = name
        self._config = config
        self._engine = engine
        self._weights = weights
        self._preparation = Preparation(config, engine)
        self._num_events = 0
        self.num_tokens = 0
        """Generated since the start."""

    async def Generate(
        self, request: rollout_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[rollout_pb2.GenerateResponse]:
        version = self._check_version(wire.decode_version(request.min_version))
        tracing.annotate(replica=self._name, version=str(version))
        maker = self._weights.maker
        starts = {c.index: wire.decode_token_ids(c.token_ids) for c in request.continuations}
        prepared = await self._preparation.prepare(
            request.number,
            wire.decode_prompt(request.prompt),
            wire.decode_sampling(request.sampling),
            _prefix(request),
            starts,
        )
        images = prepared.generation.images
        opened = rollout_pb2.Opened(
            prompt_token_ids=wire.encode_token_ids(prepared.opening),
            image_digest=images.processed.digest if images else "",
        )
        yield rollout_pb2.GenerateResponse(opened=opened)
        tokens = {index: list(start) for index, start in starts.items()}
        answer = partial(self._response, prepared, tokens, maker)
        if prepared.ended:
            yield answer(prepared.ended, tells_prompt=False)
        if not prepared.generation.starts:
            return
        tells_prompt = True
        async with aclosing(self._batches(prepared.generation)) as batches:
            async for events in batches:
                for portion in _portions(events):
                    response = answer(portion, tells_prompt=tells_prompt)
                    tells_prompt &= not any(one.prompt_experts for one in response.finished)
                    yield response

    def _check_version(self, wanted: VersionId) -> VersionId:
        """The live one."""
        if self._weights.is_asleep:
            self._weights.forget()
            raise BehindError(
                f"{self._name} sleeps while the trainer has its devices; weight sync must wake it by a"
                " version"
            )
        live = self._weights.live
        if live is None:
            raise BehindError(f"{self._name} holds no version yet; weight sync must bring one")
        if live.version < wanted:
            raise BehindError(f"{self._name} holds {live.version}, asked for {wanted}")
        return live.version

    def _batches(self, generation: GenerationRequest) -> AsyncGenerator[list[Event], None]:
        """The engine's events as they come; an empty batch is a sign of life."""
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

    def _check_maker(self, maker: str) -> None:
        """Tokens of wrong weights may still be on their way after these were replaced."""
        if self._weights.maker != maker:
            raise BehindError(f"{self._name}: what it had loaded was wrong; it has loaded it again")

    def _response(
        self,
        prepared: Prepared,
        tokens: dict[int, list[int]],
        maker: str,
        events: Sequence[Event],
        tells_prompt: bool,
    ) -> rollout_pb2.GenerateResponse:
        """`tokens`: of each completion so far, by index; those of the events are added. `tells_prompt`:
        with the prompt's experts, once."""
        response = rollout_pb2.GenerateResponse()
        for event in events:
            if isinstance(event, Chunk):
                self._check_maker(maker)
                self.num_tokens += len(event.token_ids_T)
                tokens.setdefault(event.index, []).extend(event.token_ids_T)
                response.chunks.append(_chunk(event, maker))
            else:
                text = self._engine.detokenize(tokens[event.index])
                finished = response.finished.add(
                    index=event.index,
                    finish_reason=event.finish_reason,
                    text=text,
                    experts=event.experts,
                    prompt_experts=event.prompt_experts if tells_prompt else b"",
                    cached_tokens=event.cached_tokens,
                )
                if prepared.is_turn:
                    message = self._engine.turns.parse(
                        prepared.opening, tokens[event.index], prepared.prefill, prepared.tools
                    )
                    finished.message.CopyFrom(wire.encode_message(message))
        return response

    async def StageWeights(
        self, request: rollout_pb2.StageWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.StageWeightsResponse:
        staged = await self._weights.stage(
            wire.decode_policy(request.version),
            wire.decode_manifest(request.manifest),
            [wire.decode_source(source) for source in request.sources],
            wire.decode_limits(request.limits),
            _attempt(request),
            request.keep_live,
        )
        return rollout_pb2.StageWeightsResponse(staged=wire.encode_staged(staged))

    async def CommitWeights(
        self, request: rollout_pb2.CommitWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.CommitWeightsResponse:
        pause = await self._weights.commit(wire.decode_policy(request.version), request.maker)
        return rollout_pb2.CommitWeightsResponse(pause_seconds=pause)

    async def AbortWeights(
        self, request: rollout_pb2.AbortWeightsRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.AbortWeightsResponse:
        await self._weights.abort(wire.decode_version(request.version), _attempt(request))
        return rollout_pb2.AbortWeightsResponse()

    async def Sleep(
        self, request: rollout_pb2.SleepRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.SleepResponse:
        await self._weights.sleep()
        return rollout_pb2.SleepResponse()

    async def ReadBack(
        self, request: rollout_pb2.ReadBackRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.ReadBackResponse:
        digests = await self._weights.read_back(
            wire.decode_version(request.version),
            wire.decode_ranges(request.blocks),
            wire.decode_seconds(request.timeout_seconds),
        )
        return rollout_pb2.ReadBackResponse(digests=wire.encode_digests(digests))

    async def GetReplica(
        self, request: rollout_pb2.GetReplicaRequest, context: grpc.aio.ServicerContext
    ) -> rollout_pb2.GetReplicaResponse:
        live = self._weights.live
        return rollout_pb2.GetReplicaResponse(
            name=self._name,
            live=wire.encode_policy(live) if live else None,
            num_running=self._engine.num_running,
        )


def _portions(events: list[Event]) -> Iterator[list[Event]]:
    """One for each completion whose experts are reported: all of a group may be gigabytes."""
    first = 0
    for end, event in enumerate(events, start=1):
        if end == len(events) or (isinstance(event, Ended) and event.prompt_experts):
            yield events[first:end]
            first = end
    if not events:  # a sign of life
        yield events


def _prefix(request: rollout_pb2.GenerateRequest) -> Prefix | None:
    """Of a turn."""
    if not request.HasField("turn"):
        return None
    token_ids = wire.decode_token_ids(request.turn.prefix_token_ids)
    return Prefix(token_ids, tuple(request.turn.prefix_images))


def _chunk(chunk: Chunk, maker: str) -> rollout_pb2.SegmentChunk:
    end = chunk.start + len(chunk.token_ids_T)
    return rollout_pb2.SegmentChunk(
        index=chunk.index,
        segment=wire.encode_segment(Segment(chunk.start, end, chunk.version, maker)),
        token_ids=wire.encode_token_ids(chunk.token_ids_T),
        logprobs=wire.encode_logprobs(chunk.logprobs_T),
    )


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Serve replica `index` until cancelled.

    Raises when the engine dies, when it can load nothing any more, when its log-probabilities do
    not follow the temperature, and when weight sync does not register us.
    """
    host = find_host(config.network)
    check_tensors(config, run.trust, host)
    device = pick(config.rollout.device)
    name = f"rollout-{index}"
    shared = note_of(run.folder, name)
    # Before gRPC and the receiver start their threads, which a forked engine process would not
    # survive.
    remove_left(shared)
    meeting = HostMeeting(config, run.run_id, "rollout", index)
    place = ONE_HOST
    if config.rollout.hosts > 1:
        place = await _meet(meeting, run, host)
    engine = create_engine(config, device, place)
    os.environ["VLLM_RPC_BASE_PATH"] = str(make_socket_folder(shared))
    # Made before children are forked, which must not outlive our turn.
    turn = rollout_turn(config, run, index)
    health_note.own.say("starts its engine")
    with noting(shared):
        # The trainer may have begun a step: who is started again waits for its end.
        await _start(engine, turn, max(config.start_timeout, config.trainer.step_timeout))
    if config.environment:
        logger.info(engine.turns.check(config.environment))
    note_mapped(shared)
    from services.rollout.spread import SpreadReceiver
    from weights.receiving.receiver import WeightReceiver

    async with AsyncExitStack() as stack:
        # Last: vLLM's ranks leave names in /dev/shm even when they end in order.
        # Without a wait, which would be in the event loop: what this process still maps is removed by
        # who has started it.
        stack.callback(remove_left, shared, 0.0)
        stack.push_async_callback(engine.close)
        store = await open_store(run.store_url)
        stack.push_async_callback(store.close)
        own = WeightReceiver(device, 0, config.weight_sync, host=host, tls=socket_tls(run.trust))
        check_engine = partial(
            check_temperature,
            engine,
            config.rollout.max_prompt_tokens,
            config.weight_sync.commit_timeout,
        )
        caller = Caller(run.run_id, 0)
        directory = Directory(store, run.run_id, named_addresses(config))
        followers = await stack.enter_async_context(
            _open_followers(config, run, index, place, directory)
        )
        receiver = SpreadReceiver(own, followers, asyncio.get_running_loop()) if followers else own
        weights = ReplicaWeights(
            name, engine, receiver, config.weight_sync, check_engine=check_engine, turn=turn
        )
        stack.push_async_callback(weights.close)
        await asyncio.to_thread(own.start)
        servicer = RolloutServicer(name, config, engine, weights)
        service = rollout_service(servicer)
        server = rpc.Server(
            config.endpoints.rollout[index], [service], store.newest_epoch, run.trust
        )
        server.metrics.show(ROLLOUT_RUNNING, lambda: engine.num_running)
        server.metrics.show(ROLLOUT_TOKENS, lambda: servicer.num_tokens)
        server.metrics.show(ROLLOUT_PAUSE, lambda: weights.last_pause)
        stack.push_async_callback(server.stop)
        await server.start()
        replica = Replica(name, server.address)
        weight_sync = directory.place("weight-sync")
        registered: list[Registration] = []
        try:
            await until_first_end(
                _watch(engine, weights),
                *([meeting.until_broken(store)] if followers else []),
                stay_registered(
                    *(config, weight_sync, caller, replica, receiver.peer, lambda: weights.live),
                    on_registered=registered.append,
                    trust=run.trust,
                ),
            )
        except asyncio.CancelledError:  # SIGTERM: an orderly end
            if registered:
                await deregister(weight_sync, caller, name, registered[-1], run.trust)
                await _until_idle(engine)
            raise


async def _meet(meeting: HostMeeting, run: RunContext, host: Host) -> HostPlace:
    """With the store closed again before the engine starts, which may fork."""
    if host.is_loopback:
        raise InputError(
            "rollout.hosts: other hosts do not reach 127.0.0.1; name the subnet in which a replica's hosts"
            " reach each other, network.subnet"
        )
    store = await open_store(run.store_url)
    try:
        return await meeting.lead(store, host.free_address())
    finally:
        await store.close()


@asynccontextmanager
async def _open_followers(
    config: RunConfig, run: RunContext, index: int, place: HostPlace, directory: Directory
) -> AsyncIterator[list[FollowerClient]]:
    """The followers of replica `index`, once they serve; none on one host. Raises DeadlineError."""
    async with AsyncExitStack() as stack:
        followers: list[FollowerClient] = []
        for one in followers_of(config, index):
            name = process_name("follower", one)
            at = directory.place(name)
            await rpc.wait_until_serving(at, config.start_timeout, run.trust)
            client = FollowerClient(name, at, place.meeting, run.trust)
            followers.append(await stack.enter_async_context(client))
        yield followers


async def _start(engine: Engine, turn: DeviceTurn | None, timeout: float) -> None:
    """On devices that the trainer shares it sleeps at once, until there is a version."""
    if turn is None:
        await engine.start()
        return
    await turn.take(timeout)
    await engine.start()
    await engine.sleep()
    turn.release()


async def _until_idle(engine: Engine) -> None:
    """The controller takes its groups elsewhere once it hears that we are drained."""
    for _ in range(round(DRAIN_SECONDS / IDLE_POLL_SECONDS)):
        if not engine.num_running:
            return
        await asyncio.sleep(IDLE_POLL_SECONDS)


async def _watch(engine: Engine, weights: ReplicaWeights) -> None:
    while True:
        engine.check()
        weights.check()
        await asyncio.sleep(CHECK_SECONDS)


def _attempt(request: rollout_pb2.StageWeightsRequest | rollout_pb2.AbortWeightsRequest) -> str:
    if not request.attempt:
        raise InputError(f"{request.DESCRIPTOR.name}: attempt is missing; name the try")
    return request.attempt


def rollout_service(servicer: RolloutServicer) -> rpc.Service:
    """For `rpc.Server`."""
    add = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
    return rpc.service(rollout_pb2.DESCRIPTOR, add, servicer)
