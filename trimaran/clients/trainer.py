"""TrainerService: train on a batch, send weights, save them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimaran import rpc, wire
from trimaran.clients.base import TRANSFER_MARGIN_SECONDS, Client
from trimaran.directory import Place
from trimaran.trust import NO_TRUST, Trust
from trimaran.types import (
    Caller,
    ExpertLoads,
    LedgerEnd,
    Manifest,
    Offer,
    PolicyVersion,
    Proof,
    Ranges,
    TrainingBatch,
    TransferGroup,
    TransferLimits,
    VersionId,
)
from trimaran.v1 import trainer_pb2 as pb
from trimaran.v1 import trainer_pb2_grpc

TRAIN_BATCH = f"/{pb.DESCRIPTOR.services_by_name['TrainerService'].full_name}/TrainBatch"

PORTION_BYTES = 256 << 20
"""Of groups in one message. Batches without experts or images are smaller: 512 completions of 8k tokens
are 48 MiB. A message has at most `rpc.MAX_MESSAGE_BYTES`, so a group may be four times as large."""


def _portions(sizes: Sequence[int]) -> Iterator[range]:
    """Neighbours that together have at most PORTION_BYTES, or one that alone has more."""
    first = total = 0
    for place, size in enumerate(sizes):
        if place > first and total + size > PORTION_BYTES:
            yield range(first, place)
            first, total = place, 0
        total += size
    yield range(first, len(sizes))


@dataclass(frozen=True, slots=True)
class TrainAnswer:
    """What a training step made.

    Example:
        answer = await trainer.train_batch(batch, timeout=1800.0, proofs=proofs)
        answer.metrics["trainer/loss"]
    """

    version: PolicyVersion
    metrics: dict[str, float]
    nonfinite: str = ""
    """Why updates of the step were left out, with the groups; empty where all were made."""
    expert_loads: tuple[ExpertLoads, ...] = ()
    """By layer. Empty for a model without experts, where no token passed, and of a trainer that was started
    again since."""


class TrainerClient(Client):
    """Speaks to one trainer rank.

    Each sender is asked for its offer and its transfers; everything else is asked of rank 0.

    Example:
        async with TrainerClient("127.0.0.1:7003", Caller("addition-1", epoch=2)) as client:
            answer = await client.train_batch(batch, timeout=600.0, proofs=proofs)
            print(answer.version.version, answer.metrics)
    """

    def __init__(self, address: str | Place, caller: Caller, trust: Trust = NO_TRUST) -> None:
        super().__init__(address, trust)
        self._stub: Any = trainer_pb2_grpc.TrainerServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def train_batch(
        self,
        batch: TrainingBatch,
        timeout: float,
        lineage: int = 0,
        proofs: Sequence[Proof] = (),
    ) -> TrainAnswer:
        """Idempotent by `batch.step`: where the connection breaks, it is asked again. The answer is a
        version of `lineage`.

        `proofs`: one for every version and replica that made tokens of the batch.
        """
        answer = await self._train(batch, timeout, lineage, proofs)
        version = wire.decode_policy(answer.version)
        loads = tuple(map(wire.decode_expert_loads, answer.expert_loads))
        return TrainAnswer(version, dict(answer.metrics), answer.nonfinite, loads)

    async def train_ahead(
        self, batch: TrainingBatch, timeout: float, proofs: Sequence[Proof] = ()
    ) -> None:
        """As `train_batch`, while the trainer goes on holding the version before, which may still be sent.
        `make_version` follows."""
        await self._train(batch, timeout, 0, proofs, ahead=True)

    async def make_version(self, step: int, timeout: float, lineage: int = 0) -> TrainAnswer:
        """Of the step that was trained ahead. From here on the version before it cannot be sent."""
        return await self.train_batch(TrainingBatch(step, ()), timeout, lineage)

    async def _train(
        self,
        batch: TrainingBatch,
        timeout: float,
        lineage: int,
        proofs: Sequence[Proof],
        ahead: bool = False,
    ) -> pb.TrainBatchResponse:
        num_held = await self._hold_groups(batch, timeout)
        batch = replace(batch, groups=batch.groups[num_held:])
        request = pb.TrainBatchRequest(
            caller=self._caller,
            lineage=lineage,
            proofs=[wire.encode_proof(proof) for proof in proofs],
            num_held=num_held,
            ahead=ahead,
        )

        def serialize(request: pb.TrainBatchRequest) -> bytes:
            return wire.serialize_train_request(request, batch)

        answered = pb.TrainBatchResponse.FromString
        channel: Any = self._channel
        method = channel.unary_unary(
            TRAIN_BATCH, request_serializer=serialize, response_deserializer=answered
        )
        answer: pb.TrainBatchResponse = await rpc.call_again(method, request, timeout)
        return answer

    async def _hold_groups(self, batch: TrainingBatch, timeout: float) -> int:
        """Sends the groups ahead where they do not fit into the batch's message; how many."""
        portions = list(_portions([len(wire.payload_of(scored)) for scored in batch.groups]))
        if len(portions) <= 1:
            return 0
        for portion in portions:
            groups = [wire.payload_of(batch.groups[place]) for place in portion]
            request = pb.HoldGroupsRequest(
                caller=self._caller, step=batch.step, first=portion.start, groups=groups
            )
            await rpc.call_again(self._stub.HoldGroups, request, timeout)
        return len(batch.groups)

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        """What the trainer holds, published or not."""
        request = pb.GetPolicyVersionRequest(caller=self._caller)
        answer: pb.GetPolicyVersionResponse = await rpc.call(
            self._stub.GetPolicyVersion, request, timeout
        )
        return wire.decode_policy(answer.version), wire.decode_manifest(answer.manifest)

    async def get_offer(self, timeout: float) -> tuple[PolicyVersion, Offer]:
        """What the rank at this address can send."""
        request = pb.GetOfferRequest(caller=self._caller)
        answer: pb.GetOfferResponse = await rpc.call(self._stub.GetOffer, request, timeout)
        return wire.decode_policy(answer.version), wire.decode_offer(answer.offer)

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        """The group with its rendezvous address."""
        request = pb.OpenTransferRequest(
            caller=self._caller, group=wire.encode_transfer_group(group), timeout_seconds=timeout
        )
        answer: pb.OpenTransferResponse = await rpc.call(self._stub.OpenTransfer, request, timeout)
        return wire.decode_transfer_group(answer.group)

    async def send_weights(
        self,
        version: VersionId,
        group_id: int,
        blocks: Ranges,
        base_root: str,
        limits: TransferLimits,
    ) -> int:
        """Returns the bytes sent. `base_root`: send the delta's pieces; empty: the blocks."""
        request = pb.SendWeightsRequest(
            caller=self._caller,
            version=wire.encode_version(version),
            group_id=group_id,
            blocks=wire.encode_ranges(blocks),
            base_root=base_root,
            limits=wire.encode_limits(limits),
        )
        deadline = limits.timeout + TRANSFER_MARGIN_SECONDS
        answer: pb.SendWeightsResponse = await rpc.call(self._stub.SendWeights, request, deadline)
        return answer.num_bytes

    async def get_ledger_end(self, timeout: float) -> LedgerEnd | None:
        """As the newest checkpoint holds it; None before the first."""
        request = pb.GetPolicyVersionRequest(caller=self._caller)
        answer: pb.GetPolicyVersionResponse = await rpc.call(
            self._stub.GetPolicyVersion, request, timeout
        )
        return wire.decode_ledger_end(answer.ledger) if answer.HasField("ledger") else None

    async def begin_checkpoint(
        self,
        step: int,
        timeout: float,
        ledger: LedgerEnd | None = None,
        score: float | None = None,
    ) -> None:
        """Returns once the trainer has a copy, from which it writes while it goes on. `score`: how good the step
        is, more is better, for `run.keep_best`. Raises OutOfOrderError unless `step` is the trainer's own."""
        request = pb.SaveCheckpointRequest(
            caller=self._caller,
            step=step,
            ledger=ledger and wire.encode_ledger_end(ledger),
            score=score,
        )
        await rpc.call(self._stub.SaveCheckpoint, request, timeout)

    async def wait_checkpoint(self, step: int, timeout: float) -> str:
        """The path of the checkpoint that `begin_checkpoint` began, once it is whole and on the disk.
        Raises why it is not, and OutOfOrderError where another save was the last."""
        request = pb.WaitCheckpointRequest(caller=self._caller, step=step)
        answer: pb.WaitCheckpointResponse = await rpc.call_again(
            self._stub.WaitCheckpoint, request, timeout
        )
        return answer.path

    async def save_checkpoint(
        self, step: int, timeout: float, ledger: LedgerEnd | None = None
    ) -> str:
        """Both, with `timeout` for each."""
        await self.begin_checkpoint(step, timeout, ledger)
        return await self.wait_checkpoint(step, timeout)

    async def export_model(self, path: str, timeout: float) -> str:
        """Writes a Hugging Face folder. Returns its path."""
        request = pb.ExportModelRequest(caller=self._caller, path=path)
        answer: pb.ExportModelResponse = await rpc.call(self._stub.ExportModel, request, timeout)
        return answer.path
