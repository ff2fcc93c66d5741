"""The trainer service. Every rank serves it; callers speak to rank 0, which hands each request
that all ranks must take part in on to the others and waits for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import grpc

from services.trainer.backend import build_policy
from services.trainer.held_groups import HeldGroups
from services.trainer.history import VersionHistory
from services.trainer.meeting import Meeting
from services.trainer.rank import TrainerRank
from services.weight_sync.data.sender import WeightSender
from trimaran import rpc, tracing, wire
from trimaran.config import RunConfig, TrainerSection
from trimaran.device import pick
from trimaran.directory import Directory, Place, named_addresses
from trimaran.errors import (
    DeadlineError,
    InputError,
    InternalError,
    OutOfOrderError,
    TrimaranError,
    UnavailableError,
    first_error,
)
from trimaran.network import Host, check_tensors, find_host
from trimaran.run_context import RunContext
from trimaran.series import TRAINER_STEP
from trimaran.store import Store, open_store
from trimaran.tls import socket_tls
from trimaran.trust import NO_TRUST, Trust
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc, types_pb2

logger = logging.getLogger(__name__)
T = TypeVar("T")
Together = trainer_pb2.TrainBatchRequest | trainer_pb2.ExportModelRequest
"""Requests that all ranks take part in."""

SAVE_MARGIN_SECONDS = 5.0
"""Each rank's own deadline ends first, so that its error says what happened."""


ASKED_TWICE = frozenset({"TrainBatch"})
"""Its connections may break and be made again: `TrainerRank.train`."""


class OtherRanks:
    """Rank 0's stubs of the ranks 1, 2, …; empty on the others."""

    def __init__(self, places: Sequence[Place], trust: Trust = NO_TRUST) -> None:
        self._channels = [rpc.connect(place, trust) for place in places]
        self._stubs = [trainer_pb2_grpc.TrainerServiceStub(one) for one in self._channels]

    def __len__(self) -> int:
        return len(self._stubs)

    async def run_everywhere(
        self, method: str, request: Together, own: Awaitable[T], timeout: float
    ) -> T:
        """This rank's own result, when all ranks have one. The first failure rises at once."""
        call = rpc.call_again if method in ASKED_TWICE else rpc.call
        calls = [call(getattr(stub, method), request, timeout) for stub in self._stubs]
        result = asyncio.ensure_future(own)
        tasks = [result, *(asyncio.ensure_future(call) for call in calls)]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*tasks)
        except TimeoutError:
            raise DeadlineError(f"{method}: a trainer rank took over {timeout:g} s") from None
        finally:
            for task in tasks:
                task.cancel()
        return result.result()

    async def save_everywhere(
        self, request: trainer_pb2.SaveCheckpointRequest, own: Awaitable[str], timeout: float
    ) -> list[str]:
        """Digests of all parts of a checkpoint, this rank's first. Waits for every rank, so that
        none writes any more when a failure rises."""
        stubs = enumerate(self._stubs, start=1)
        work = [own, *(self._written(rank, stub, request, timeout) for rank, stub in stubs)]
        answers = await asyncio.gather(*work, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [digest for digest in answers if isinstance(digest, str) and digest]

    async def _written(
        self,
        rank: int,
        stub: trainer_pb2_grpc.TrainerServiceStub,
        request: trainer_pb2.SaveCheckpointRequest,
        timeout: float,
    ) -> str:
        try:
            return (await rpc.call(stub.SaveCheckpoint, request, timeout)).digest
        except (DeadlineError, UnavailableError) as error:
            raise type(error)(f"trainer rank {rank}: {error}") from None

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(
        self,
        rank: TrainerRank,
        others: OtherRanks,
        sender: WeightSender,
        history: VersionHistory,
        section: TrainerSection,
    ) -> None:
        self._rank = rank
        self._history = history
        self._others = others
        self._sender = sender
        self._timeout = section.step_timeout
        self._save_timeout = section.save_timeout
        self._saving = asyncio.Lock()
        self._held = HeldGroups()

    async def HoldGroups(
        self, request: trainer_pb2.HoldGroupsRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.HoldGroupsResponse:
        self._held.add(request.step, request.first, wire.decode_groups(request.groups))
        return trainer_pb2.HoldGroupsResponse()

    async def TrainBatch(
        self, request: trainer_pb2.TrainBatchRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.TrainBatchResponse:
        batch = wire.decode_batch(request.batch)
        held = self._held.take(batch.step, request.num_held)
        batch = replace(batch, groups=held + batch.groups)
        if self._rank.rank == 0:
            self._rank.check_batch(batch)
            proofs = [wire.decode_proof(proof) for proof in request.proofs]
            self._rank.check_proofs(batch, proofs, self._history.roots)
        numbers = [scored.group.number for scored in batch.groups] if not self._rank.rank else []
        with tracing.in_groups("train", numbers):
            answer = await self._together(
                "TrainBatch", _of_step(request), lambda: self._rank.train(batch, request.lineage)
            )
        tracing.annotate(step=batch.step, version=str(answer.version.version))
        if self._rank.rank == 0:
            # Before anybody hears of it. Where the store is away, the same step is asked for again.
            await self._history.add(answer.version)
        self._held.done(batch.step)
        return trainer_pb2.TrainBatchResponse(
            version=wire.encode_policy(answer.version),
            metrics=answer.metrics,
            nonfinite=answer.nonfinite,
        )

    async def SaveCheckpoint(
        self, request: trainer_pb2.SaveCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.SaveCheckpointResponse:
        if self._rank.rank:
            digest = await self._rank.write_shard(request.step)
            return trainer_pb2.SaveCheckpointResponse(digest=digest)
        # A caller that goes away does not stop a save under way; the next one waits for it.
        path = await asyncio.shield(asyncio.create_task(self._save(request)))
        return trainer_pb2.SaveCheckpointResponse(path=path)

    async def _save(self, request: trainer_pb2.SaveCheckpointRequest) -> str:
        """On rank 0. A failure leaves the ranks as they are: training goes on."""
        step, timeout = request.step, self._save_timeout + SAVE_MARGIN_SECONDS
        async with self._saving:
            try:
                own = self._rank.write_shard(step)
                shards = await self._others.save_everywhere(request, own, timeout)
                ledger = (
                    wire.decode_ledger_end(request.ledger) if request.HasField("ledger") else None
                )
                score = request.score if request.HasField("score") else None
                return await self._rank.publish_checkpoint(shards, ledger, score)
            except Exception as error:
                await self._discard_checkpoint()
                if isinstance(error, TrimaranError):
                    raise
                raise InternalError(f"checkpoint of step {step}: {error}") from error

    async def _discard_checkpoint(self) -> None:
        try:
            await self._rank.discard_checkpoint()
        except Exception as error:
            logger.warning("an unfinished checkpoint stays until the next save or start: %s", error)

    async def ExportModel(
        self, request: trainer_pb2.ExportModelRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.ExportModelResponse:
        target = self._rank.check_export(request.path)
        path = await self._together("ExportModel", request, lambda: self._rank.export_model(target))
        return trainer_pb2.ExportModelResponse(path=path)

    async def GetPolicyVersion(
        self, request: trainer_pb2.GetPolicyVersionRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.GetPolicyVersionResponse:
        return trainer_pb2.GetPolicyVersionResponse(
            version=wire.encode_policy(self._rank.version),
            manifest=wire.encode_manifest(self._rank.manifest),
            ledger=self._rank.ledger and wire.encode_ledger_end(self._rank.ledger),
        )

    async def GetOffer(
        self, request: trainer_pb2.GetOfferRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.GetOfferResponse:
        version, offer = self._rank.offer(self._sender.peer)
        return trainer_pb2.GetOfferResponse(
            version=wire.encode_policy(version), offer=wire.encode_offer(offer)
        )

    async def OpenTransfer(
        self, request: trainer_pb2.OpenTransferRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.OpenTransferResponse:
        group = wire.decode_transfer_group(request.group)
        timeout = wire.decode_seconds(request.timeout_seconds)
        opened = await asyncio.to_thread(self._sender.open, group, timeout)
        return trainer_pb2.OpenTransferResponse(group=wire.encode_transfer_group(opened))

    async def SendWeights(
        self, request: trainer_pb2.SendWeightsRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.SendWeightsResponse:
        blocks, limits = wire.decode_ranges(request.blocks), wire.decode_limits(request.limits)
        num_bytes = await self._rank.send(
            wire.decode_version(request.version),
            lambda snapshot: self._sender.send(
                snapshot, request.group_id, blocks, request.base_root, limits
            ),
        )
        return trainer_pb2.SendWeightsResponse(num_bytes=num_bytes)

    async def _together(self, method: str, request: Together, own: Callable[[], Awaitable[T]]) -> T:
        try:
            return await self._others.run_everywhere(method, request, own(), self._timeout)
        except (InputError, OutOfOrderError):
            raise  # refused before anything began; rank 0 looks at a batch before any other hears of it
        except Exception as error:
            if self._others:
                self._rank.fail(f"{method} failed on a rank: {error}")
            raise


def _of_step(request: trainer_pb2.TrainBatchRequest) -> trainer_pb2.TrainBatchRequest:
    """What the other ranks are told by this way: their batch comes through the ranks' own group."""
    step = types_pb2.TrainingBatch(step=request.batch.step)
    return trainer_pb2.TrainBatchRequest(caller=request.caller, batch=step, lineage=request.lineage)


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Rank `index` of the trainer, until cancelled. SERVING once the weights are loaded.

    Raises InternalError once a step has failed in the middle: all ranks must be started again.
    """
    addresses = config.endpoints.trainer
    if index >= len(addresses):
        raise InputError(
            f"endpoints.trainer names {len(addresses)} addresses; rank {index} has none"
        )
    host = find_host(config.network)
    check_tensors(config, run.trust, host)
    store = await open_store(run.store_url)
    try:
        await _serve(config, run, store, index, host)
    finally:
        await store.close()


async def _serve(config: RunConfig, run: RunContext, store: Store, index: int, host: Host) -> None:
    addresses, device = config.endpoints.trainer, pick(config.trainer.device)
    sender = WeightSender(device, 0, config.weight_sync, host, socket_tls(run.trust))
    rank = TrainerRank(config, run, index, sender.hold)
    directory = Directory(store, run.run_id, named_addresses(config))
    ranks = range(1, config.num_trainer_ranks) if index == 0 else ()
    places = [directory.place(f"trainer-{rank}") for rank in ranks]
    others = OtherRanks(places, run.trust)
    history, meeting = await VersionHistory.open(store, run), Meeting(store, run.run_id)
    servicer = TrainerServicer(rank, others, sender, history, config.trainer)
    add = trainer_pb2_grpc.add_TrainerServiceServicer_to_server
    service = rpc.service(trainer_pb2.DESCRIPTOR, add, servicer)
    # Bound first: a port in use is known before a model is loaded.
    server = rpc.Server(addresses[index], [service], store.newest_epoch, run.trust)
    server.metrics.show(TRAINER_STEP, lambda: rank.version.version.step)
    try:
        async with asyncio.TaskGroup() as tasks:
            if config.num_trainer_ranks > 1:
                tasks.create_task(meeting.until_broken(index))
            if rank.exports:
                await asyncio.to_thread(sender.start)
            await rank.start(lambda: build_policy(config, meeting, device, index))
            if index == 0:
                await history.add(rank.version)
            for place in places:
                await rpc.wait_until_serving(place, config.start_timeout, run.trust)
            await server.start()
            logger.info("rank %d serves %s at %s", index, rank.version.version, server.address)
            raise InternalError(await rank.until_failed())
    except ExceptionGroup as errors:
        raise first_error(errors) from None
    finally:
        await server.stop()
        await asyncio.to_thread(sender.close)
        await others.close()
        await rank.close()
