"""The trainer's door, before any rank hears of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.trainer.exchange.history import VersionHistory
from services.trainer.exchange.provenance import check_proofs
from services.trainer.other_ranks import OtherRanks
from services.trainer.server import TrainerServicer
from tests.extending.memory_store import MemoryStore
from tests.trainer.batches import proofs_for, random_batch
from trimaran.clients import TrainAnswer
from trimaran.config import TrainerSection
from trimaran.errors import OutOfOrderError, UnavailableError, UnprovenError
from trimaran.run.context import RunContext
from trimaran.store import Store
from trimaran.types import Caller, PolicyVersion, Proof, TrainingBatch, VersionId
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

ROOT = "root"


class RecordingRank:
    """Rank 0, which says what it trained."""

    rank = 0

    def __init__(self) -> None:
        self.trained: list[int] = []

    def begins(self, step: int) -> bool:
        return step not in self.trained

    def check_batch(self, batch: Any, proofs: Any, recorded_roots: Any) -> None:
        check_proofs(batch, proofs, recorded_roots)

    async def train(self, batch: Any, lineage: int) -> TrainAnswer:
        self.trained.append(batch.step)
        return TrainAnswer(PolicyVersion("run", VersionId(0, batch.step), f"root {batch.step}"), {})


RUN = RunContext("run", Path(), "")
UNUSED: Any = None


class Service:
    """That of rank 0 in a run whose first version has `ROOT`, called without a network."""

    def __init__(self, rank: Any, history: VersionHistory, others: OtherRanks) -> None:
        self.history = history
        self.servicer = TrainerServicer(rank, others, UNUSED, history, TrainerSection())

    async def hold(self, batch: TrainingBatch) -> None:
        groups = map(wire.payload_of, batch.groups)
        held = trainer_pb2.HoldGroupsRequest(step=batch.step, groups=groups)
        await self.servicer.HoldGroups(held, UNUSED)

    async def ask(self, batch: TrainingBatch, proofs: Sequence[Proof], epoch: int = 1) -> Any:
        """For the step, whose groups are held."""
        held = trainer_pb2.HeldBatch(
            step=batch.step, num_groups=len(batch.groups), proofs=map(wire.encode_proof, proofs)
        )
        caller = wire.encode_caller(Caller("run", epoch))
        return await self.servicer.Train(
            trainer_pb2.TrainRequest(caller=caller, batch=held), UNUSED
        )

    async def train(self, batch: TrainingBatch, proofs: Sequence[Proof]) -> Any:
        await self.hold(batch)
        return await self.ask(batch, proofs)


async def serve(rank: RecordingRank, store: Store, others: Sequence[Any] = ()) -> Service:
    history = await VersionHistory.open(store, RUN)
    await history.add(PolicyVersion("run", VersionId(0, 0), ROOT))
    return Service(rank, history, OtherRanks(others))


async def test_a_batch_with_unproven_tokens_reaches_no_rank() -> None:
    batch, rank = random_batch(1), RecordingRank()
    service = await serve(rank, MemoryStore())
    with pytest.raises(UnprovenError, match="there is no proof"):
        await service.train(batch, [])
    with pytest.raises(UnprovenError):
        await service.train(batch, proofs_for(batch, "a root that was never made"))
    assert rank.trained == []
    await service.train(batch, proofs_for(batch, ROOT))
    assert rank.trained == [1]


async def test_a_version_is_in_the_store_before_anybody_hears_of_it() -> None:
    """A store that is away fails the call. The ranks stay as they are, and the step is asked again."""

    class AwayStore(MemoryStore):
        away = False

        async def extend(self, stream: str, values: Any, after: int | None = None) -> int:
            if self.away:
                raise UnavailableError("the store is away")
            return await super().extend(stream, values, after)

    store, batch = AwayStore(), random_batch(1)
    service = await serve(RecordingRank(), store)
    store.away = True
    with pytest.raises(UnavailableError, match="the store is away"):
        await service.train(batch, proofs_for(batch, ROOT))
    assert not service.history.roots(VersionId(0, 1))
    store.away = False
    await service.train(batch, proofs_for(batch, ROOT))
    again = await VersionHistory.open(store, RUN)
    assert again.roots(VersionId(0, 1)) == {"root 1"}


async def test_a_step_that_is_done_is_answered_again_without_its_groups() -> None:
    """Where the connection breaks after the answer, the client asks again and sends no groups."""

    batch = random_batch(1)
    proofs, service = proofs_for(batch, ROOT), await serve(RecordingRank(), MemoryStore())
    with pytest.raises(OutOfOrderError, match="step 1: 4 of the 4 groups .* send them again"):
        await service.ask(batch, proofs)
    answers = [await service.train(batch, proofs), await service.ask(batch, proofs)]
    # Again with groups, by a controller that was started again.
    assert answers[0] == answers[1] == await service.train(batch, proofs)
    assert service.servicer._held._payloads == {}


class WaitingRank(RecordingRank):
    """Rank 0, whose step ends when the other ranks take part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.failure = ""

    def fail(self, reason: str) -> None:
        self.failure = reason

    async def train(self, batch: Any, lineage: int) -> TrainAnswer:
        self.trained.append(batch.step)
        await asyncio.Event().wait()
        raise AssertionError


class OtherRank(trainer_pb2_grpc.TrainerServiceServicer):
    """It stands elsewhere than rank 0."""

    async def Agree(self, request: Any, context: Any) -> Any:
        raise OutOfOrderError(f"step {request.step}: the trainer holds step 4")


async def test_a_rank_that_would_not_take_part_is_heard_before_any_waits_for_it() -> None:
    """Else rank 0 stays in its broadcast for `step_timeout`."""

    store, batch, rank = MemoryStore(), random_batch(1), WaitingRank()
    epoch = await store.next_epoch("run")
    add = trainer_pb2_grpc.add_TrainerServiceServicer_to_server
    other = rpc.service(trainer_pb2.DESCRIPTOR, add, OtherRank())
    server = rpc.Server("127.0.0.1:0", [other], store.newest_epoch)
    await server.start()
    service = await serve(rank, store, [server.address])
    await service.hold(batch)
    try:
        async with asyncio.timeout(30):
            with pytest.raises(UnavailableError, match="rank 1 takes no part .* holds step 4"):
                await service.ask(batch, proofs_for(batch, ROOT), epoch)
    finally:
        await service.servicer._others.close()
        await server.stop()
    assert rank.trained == []
    assert "holds step 4" in rank.failure, "only another start brings the ranks together"
