"""The trainer's door, before any rank hears of a batch."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from services.trainer.provenance import check_proofs
from services.trainer.server import OtherRanks, TrainerServicer
from tests.trainer.batches import proofs_for, random_batch
from trimaran import wire
from trimaran.clients import TrainAnswer
from trimaran.config import TrainerSection
from trimaran.errors import UnprovenError
from trimaran.types import PolicyVersion, VersionId
from trimaran.v1 import trainer_pb2

ROOT = "root"


class RecordingRank:
    """Rank 0, all of whose versions have one root."""

    rank = 0

    def __init__(self) -> None:
        self.trained: list[int] = []

    def check_proofs(self, batch: Any, proofs: Any) -> None:
        check_proofs(batch, proofs, lambda version: frozenset({ROOT}))

    async def train(self, batch: Any, lineage: int) -> TrainAnswer:
        self.trained.append(batch.step)
        return TrainAnswer(PolicyVersion("run", VersionId(0, batch.step), ROOT), {})


def test_a_batch_with_unproven_tokens_reaches_no_rank() -> None:
    async def scenario() -> None:
        batch = random_batch(1)
        rank: Any = RecordingRank()
        sender: Any = None  # nothing is sent
        context: Any = None
        servicer = TrainerServicer(rank, OtherRanks(()), sender, TrainerSection())
        request = trainer_pb2.TrainBatchRequest(batch=wire.encode_batch(batch))
        with pytest.raises(UnprovenError, match="there is no proof"):
            await servicer.TrainBatch(request, context)
        assert rank.trained == []
        request.proofs.extend(wire.encode_proof(proof) for proof in proofs_for(batch, ROOT))
        await servicer.TrainBatch(request, context)
        assert rank.trained == [1]

    asyncio.run(scenario())
