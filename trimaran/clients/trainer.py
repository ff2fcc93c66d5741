"""TrainerService: train on a batch, send weights, save them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trimaran.clients.base import TRANSFER_MARGIN_SECONDS, CallerClient
from trimaran.types import (
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
from trimaran.wire import messages as wire
from trimaran.wire import rpc

PORTION_BYTES = 64 << 20
"""The most that HoldGroups carries, but for a group that is larger: most batches are one message (512
completions of 8k tokens are 48 MiB), and no copy of a large batch is made as a whole."""


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


class TrainerClient(CallerClient):
    """Speaks to one trainer rank.

    Each sender is asked for its offer and its transfers; everything else is asked of rank 0.

    Example:
        async with TrainerClient("127.0.0.1:7003", Caller("addition-1", epoch=2)) as client:
            answer = await client.train_batch(batch, timeout=600.0, proofs=proofs)
            print(answer.version.version, answer.metrics)
    """

    _service = trainer_pb2_grpc.TrainerServiceStub

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
        request = pb.TrainRequest(
            caller=self._caller,
            batch=await self._hold(batch, timeout, proofs),
            lineage=lineage,
        )
        return _decode_answer(await rpc.call_again(self._stub.Train, request, timeout))

    async def train_ahead(
        self, batch: TrainingBatch, timeout: float, proofs: Sequence[Proof] = ()
    ) -> None:
        """As `train_batch`, while the trainer goes on holding the version before, which may still be sent.
        `make_version` follows."""
        request = pb.TrainAheadRequest(
            caller=self._caller, batch=await self._hold(batch, timeout, proofs)
        )
        await rpc.call_again(self._stub.TrainAhead, request, timeout)

    async def make_version(self, step: int, timeout: float, lineage: int = 0) -> TrainAnswer:
        """The version of the step that was trained ahead. The one before it cannot be sent any more."""
        request = pb.MakeVersionRequest(caller=self._caller, step=step, lineage=lineage)
        return _decode_answer(await rpc.call_again(self._stub.MakeVersion, request, timeout))

    async def _hold(
        self, batch: TrainingBatch, timeout: float, proofs: Sequence[Proof]
    ) -> pb.HeldBatch:
        """Brings the groups, a portion at a time; the batch that they are."""
        for portion in _portions([len(wire.payload_of(scored)) for scored in batch.groups]):
            groups = [wire.payload_of(batch.groups[place]) for place in portion]
            request = pb.HoldGroupsRequest(
                caller=self._caller, step=batch.step, first=portion.start, groups=groups
            )
            await rpc.call_again(self._stub.HoldGroups, request, timeout)
        return pb.HeldBatch(
            step=batch.step,
            num_groups=len(batch.groups),
            num_steps=batch.num_steps,
            proofs=map(wire.encode_proof, proofs),
        )

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


def _decode_answer(answer: pb.TrainResponse) -> TrainAnswer:
    version = wire.decode_policy(answer.version)
    return TrainAnswer(version, dict(answer.metrics), answer.nonfinite)
