"""The trainer service. Every rank serves it; callers speak to rank 0, which hands each request
that all ranks must take part in on to the others and waits for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import grpc

from services.trainer.backend import build_policy
from services.trainer.checkpoints.saves import SAVE_MARGIN_SECONDS, Saves
from services.trainer.exchange.held_groups import HeldGroups
from services.trainer.exchange.history import VersionHistory
from services.trainer.meeting import Meeting
from services.trainer.other_ranks import OtherRanks, Together
from services.trainer.rank import TrainerRank
from trimaran.clients import TrainAnswer
from trimaran.config import RunConfig, TrainerSection
from trimaran.errors import (
    InputError,
    InternalError,
    StaleEpochError,
    TrimaranError,
    first_error,
)
from trimaran.host.device import pick
from trimaran.run.context import RunContext
from trimaran.run.directory import Directory, ProcessPlace, named_addresses
from trimaran.run.network import Host, check_tensors, find_host
from trimaran.store import Store, open_store
from trimaran.telemetry import tracing
from trimaran.telemetry.series import TRAINER_STEP
from trimaran.trust.access import Trust
from trimaran.trust.tls import socket_tls
from trimaran.types import TrainingBatch
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc
from trimaran.wire import health_note, rpc
from trimaran.wire import messages as wire
from weights.sending.sender import WeightSender

logger = logging.getLogger(__name__)
T = TypeVar("T")


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
        self._saves = Saves(rank, others, section.save_timeout)
        self._save_seconds = 2 * (section.save_timeout + SAVE_MARGIN_SECONDS)
        """The parts of all ranks, then the whole."""
        self._save_begun: tuple[trainer_pb2.SaveCheckpointRequest, float] | None = None
        """Above rank 0: the last one, and when, by the loop's clock."""
        self._held = HeldGroups()
        # Rank 0 hands payloads on as they came, but for those with chosen experts (shared_batch.py).
        shares = others and not section.router.replay
        self._parse = wire.parse_scored_group if shares else wire.decode_scored_group

    async def HoldGroups(
        self, request: trainer_pb2.HoldGroupsRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.HoldGroupsResponse:
        if self._rank.begins(request.step):
            self._held.add(request.step, request.first, request.groups)
        return trainer_pb2.HoldGroupsResponse()

    async def Train(
        self, request: trainer_pb2.TrainRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.TrainResponse:
        batch = self._take(request.batch)
        join = trainer_pb2.JoinStepRequest(
            caller=request.caller, step=batch.step, lineage=request.lineage
        )
        answer = await self._step(batch, join, lambda: self._rank.train(batch, request.lineage))
        return await self._made(answer)

    async def TrainAhead(
        self, request: trainer_pb2.TrainAheadRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.TrainAheadResponse:
        batch = self._take(request.batch)
        join = trainer_pb2.JoinStepRequest(caller=request.caller, step=batch.step, ahead=True)
        await self._step(batch, join, lambda: self._rank.train_ahead(batch))
        return trainer_pb2.TrainAheadResponse()

    async def MakeVersion(
        self, request: trainer_pb2.MakeVersionRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.TrainResponse:
        self._rank.check_ahead(request.step)
        answer = await self._together(
            "MakeVersion", request, lambda: self._rank.make_version(request.step, request.lineage)
        )
        return await self._made(answer)

    async def JoinStep(
        self, request: trainer_pb2.JoinStepRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.JoinStepResponse:
        batch = TrainingBatch(request.step, ())
        if request.ahead:
            await self._rank.train_ahead(batch)
        else:
            await self._rank.train(batch, request.lineage)
        return trainer_pb2.JoinStepResponse()

    def _take(self, held: trainer_pb2.HeldBatch) -> TrainingBatch:
        """The batch that may train; without groups where its step is done or under way."""
        if not self._rank.begins(held.step):
            return TrainingBatch(held.step, ())
        groups = tuple(map(self._parse, self._held.take(held.step, held.num_groups)))
        batch = TrainingBatch(held.step, groups, held.num_steps)
        self._rank.check_batch(batch, map(wire.decode_proof, held.proofs), self._history.roots)
        return batch

    async def _step(
        self,
        batch: TrainingBatch,
        join: trainer_pb2.JoinStepRequest,
        own: Callable[[], Awaitable[T]],
    ) -> T:
        with tracing.in_groups("train", [scored.group.number for scored in batch.groups]):
            if self._others and self._rank.begins(batch.step):
                await self._agree(join)
            self._held.drop()
            return await self._together("JoinStep", join, own)

    async def _made(self, answer: TrainAnswer) -> trainer_pb2.TrainResponse:
        if self._rank.rank == 0:
            tracing.annotate(step=answer.version.version.step, version=str(answer.version.version))
            # Before anybody hears of it. Where the store is away, the same step is asked for again.
            await self._history.add(answer.version)
        return trainer_pb2.TrainResponse(
            version=wire.encode_policy(answer.version),
            metrics=answer.metrics,
            nonfinite=answer.nonfinite,
        )

    async def Agree(
        self, request: trainer_pb2.AgreeRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.AgreeResponse:
        await self._rank.agree(request.step)
        return trainer_pb2.AgreeResponse()

    async def SaveCheckpoint(
        self, request: trainer_pb2.SaveCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.SaveCheckpointResponse:
        if self._rank.rank:
            await self._rank.saver.begin(request.step)
            self._save_begun = request, asyncio.get_running_loop().time()
        else:  # a caller that goes away does not stop a save
            await asyncio.shield(asyncio.create_task(self._saves.begin(request)))
        return trainer_pb2.SaveCheckpointResponse()

    async def WaitCheckpoint(
        self, request: trainer_pb2.WaitCheckpointRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.WaitCheckpointResponse:
        if self._rank.rank:
            digest = await self._rank.saver.written(request.step)
            return trainer_pb2.WaitCheckpointResponse(digest=digest)
        return trainer_pb2.WaitCheckpointResponse(path=await self._saves.wait(request.step))

    async def finish_save(self, first: ProcessPlace, trust: Trust) -> None:
        """Returns once no checkpoint is being written by any rank, or one takes too long. `first`: rank 0.

        For a rank that has failed in a step: what is written was copied before, and needs no step. The
        end of one rank ends the others, so each waits until rank 0 has published the whole.
        """
        try:
            async with asyncio.timeout(self._save_seconds):
                if not self._rank.rank:
                    await self._saves.finish()
                elif self._save_begun:
                    await self._hear_of_save(*self._save_begun, first, trust)
        except (TimeoutError, TrimaranError) as error:
            why = str(error) or f"took over {self._save_seconds:g} s"
            logger.warning("rank %d waits for no checkpoint any more: %s", self._rank.rank, why)

    async def _hear_of_save(
        self,
        request: trainer_pb2.SaveCheckpointRequest,
        begun: float,
        first: ProcessPlace,
        trust: Trust,
    ) -> None:
        left = begun + self._save_seconds - asyncio.get_running_loop().time()
        if left <= 0:
            return
        asked = trainer_pb2.WaitCheckpointRequest(caller=request.caller, step=request.step)
        async with rpc.connect(first, trust) as channel:
            stub = trainer_pb2_grpc.TrainerServiceStub(channel)
            await rpc.call(stub.WaitCheckpoint, asked, left)

    async def ExportModel(
        self, request: trainer_pb2.ExportModelRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.ExportModelResponse:
        first = self._rank.rank == 0  # the others send, and write nothing
        target = self._rank.check_export(request.path) if first else Path(request.path)
        path = await self._together("ExportModel", request, lambda: self._rank.export_model(target))
        return trainer_pb2.ExportModelResponse(path=path)

    async def GetPolicyVersion(
        self, request: trainer_pb2.GetPolicyVersionRequest, context: grpc.aio.ServicerContext
    ) -> trainer_pb2.GetPolicyVersionResponse:
        return trainer_pb2.GetPolicyVersionResponse(
            version=wire.encode_policy(self._rank.version),
            manifest=wire.encode_manifest(self._rank.manifest),
            ledger=self._rank.saver.ledger and wire.encode_ledger_end(self._rank.saver.ledger),
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

    async def _agree(self, join: trainer_pb2.JoinStepRequest) -> None:
        """Before any rank waits for another: one that refused alone would leave them in a collective."""
        asked = trainer_pb2.AgreeRequest(caller=join.caller, step=join.step)
        try:
            await self._others.agree(asked, self._timeout)
        except StaleEpochError:
            raise  # a controller that was replaced: the ranks are as they were
        except Exception as error:
            self._rank.fail(f"step {join.step}: {error}")
            raise

    async def _together(self, method: str, request: Together, own: Callable[[], Awaitable[T]]) -> T:
        """Ask rank 0 before whether anything is to be refused."""
        try:
            return await self._others.run_everywhere(method, request, own(), self._timeout)
        except Exception as error:
            if self._others:
                self._rank.fail(f"{method} failed on a rank: {error}")
            raise


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Rank `index` of the trainer, until cancelled. SERVING once the weights are loaded.

    Raises InternalError once a step has failed in the middle and no checkpoint is being written any more:
    all ranks must be started again.
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
            health_note.own.say("waits for the other ranks")
            for place in places:
                await rpc.wait_until_serving(place, config.start_timeout, run.trust)
            await server.start()
            logger.info("rank %d serves %s at %s", index, rank.version.version, server.address)
            reason = await rank.until_failed()
            logger.error("rank %d ends: %s", index, reason)
            await servicer.finish_save(directory.place("trainer-0"), run.trust)
            raise InternalError(reason)
    except ExceptionGroup as errors:
        raise first_error(errors) from None
    finally:
        await server.stop()
        await asyncio.to_thread(sender.close)
        await others.close()
        await rank.close()
