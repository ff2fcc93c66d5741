"""One small client a service; they speak nouns, not messages.

`RunClient` is the public one. The others take the controller's `Caller` once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import grpc

from trimaran import errors, rpc, wire
from trimaran.types import (
    Caller,
    Completion,
    Group,
    Manifest,
    PartialCompletion,
    PolicyVersion,
    Prompt,
    Replica,
    Routing,
    Run,
    RunEvent,
    Sampling,
    Segment,
    TrainingBatch,
    TransferGroup,
    Verdict,
    VersionId,
)
from trimaran.v1 import (
    reward_pb2,
    reward_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
    trainer_pb2,
    trainer_pb2_grpc,
    weight_sync_pb2,
    weight_sync_pb2_grpc,
)

CONTROL_SECONDS = 10.0
"""Deadline of calls that only look something up."""
TRANSFER_MARGIN_SECONDS = 5.0
"""A transfer's own deadline ends first, so that its error says what happened."""


class Client:
    """Owns its channel; use as an async context manager or call `close`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel: grpc.aio.Channel = rpc.connect(address)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class RunClient(Client):
    """Watches and cancels a run.

    Example: `async with RunClient("127.0.0.1:7000") as client: run = await client.get_run()`
    """

    def __init__(self, address: str, run_id: str = "") -> None:
        super().__init__(address)
        self._stub = run_pb2_grpc.RunServiceStub(self._channel)
        self._run_id = run_id

    async def get_run(self) -> Run:
        request = run_pb2.GetRunRequest(run_id=self._run_id)
        return wire.decode_run((await rpc.call(self._stub.GetRun, request, CONTROL_SECONDS)).run)

    async def cancel_run(self) -> Run:
        request = run_pb2.CancelRunRequest(run_id=self._run_id)
        return wire.decode_run((await rpc.call(self._stub.CancelRun, request, CONTROL_SECONDS)).run)

    async def watch_run(
        self, after_sequence: int = 0, idle_timeout: float = 3600.0
    ) -> AsyncIterator[RunEvent]:
        request = run_pb2.WatchRunRequest(run_id=self._run_id, after_sequence=after_sequence)
        async for response in rpc.stream(self._stub.WatchRun, request, idle_timeout):
            yield wire.decode_event(response.event)


@dataclass(slots=True)
class _CompletionAssembly:
    token_ids_T: list[int] = field(default_factory=list)
    logprobs_T: list[float] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    finished: Completion | None = None


class GroupAssembly:
    """Puts a group together from the streams of one or more attempts.

    After a stream broke, pass the same assembly to `generate` on another
    replica: unfinished completions go on from their prefix.
    """

    def __init__(self, num_samples: int) -> None:
        self._completions_G = [_CompletionAssembly() for _ in range(num_samples)]
        self.prompt_token_ids: tuple[int, ...] = ()

    @property
    def started(self) -> bool:
        return bool(self.prompt_token_ids)

    @property
    def complete(self) -> bool:
        return all(completion.finished for completion in self._completions_G)

    def unfinished(self) -> dict[int, PartialCompletion]:
        return {
            index: PartialCompletion(tuple(c.token_ids_T), tuple(c.logprobs_T), tuple(c.segments))
            for index, c in enumerate(self._completions_G)
            if c.finished is None
        }

    def completions(self) -> tuple[Completion, ...]:
        """All of them; call when `complete`."""
        finished_G = [completion.finished for completion in self._completions_G]
        assert all(finished_G), "the group is not complete"
        return tuple(completion for completion in finished_G if completion)

    def take(self, event: rollout_pb2.GenerateResponse) -> None:
        match event.WhichOneof("event"):
            case "opened":
                self.prompt_token_ids = wire.decode_token_ids(event.opened.prompt_token_ids)
            case "chunk":
                self._take_chunk(event.chunk)
            case "finished":
                self._take_finished(event.finished)

    def _take_chunk(self, chunk: rollout_pb2.SegmentChunk) -> None:
        completion = self._completions_G[chunk.index]
        segment = wire.decode_segment(chunk.segment)
        assert segment.start == len(completion.token_ids_T), "a stream lost a segment"
        completion.token_ids_T.extend(wire.decode_token_ids(chunk.token_ids))
        completion.logprobs_T.extend(wire.decode_logprobs(chunk.logprobs))
        last = completion.segments[-1] if completion.segments else None
        same_source = last and (last.version, last.origin, last.replica) == (
            segment.version,
            segment.origin,
            segment.replica,
        )
        if last and same_source:
            completion.segments[-1] = Segment(
                last.start, segment.end, last.version, last.origin, last.replica
            )
        else:
            completion.segments.append(segment)

    def _take_finished(self, finished: rollout_pb2.Finished) -> None:
        completion = self._completions_G[finished.index]
        completion.finished = Completion(
            token_ids_T=tuple(completion.token_ids_T),
            logprobs_T=tuple(completion.logprobs_T),
            text=finished.text,
            finish_reason=finished.finish_reason,
            segments=tuple(completion.segments),
        )


class RolloutClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub = rollout_pb2_grpc.RolloutServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def generate(
        self,
        number: int,
        attempt: int,
        prompt: Prompt,
        sampling: Sampling,
        min_version: VersionId,
        assembly: GroupAssembly,
        idle_timeout: float,
    ) -> Group:
        """Generate what `assembly` still lacks. On an error it keeps what had arrived."""
        continuations = assembly.unfinished() if assembly.started else {}
        request = rollout_pb2.GenerateRequest(
            caller=self._caller,
            number=number,
            attempt=attempt,
            prompt=wire.encode_prompt(prompt),
            sampling=wire.encode_sampling(sampling),
            continuations=[
                rollout_pb2.Continuation(
                    index=index, token_ids=wire.encode_token_ids(partial.token_ids_T)
                )
                for index, partial in continuations.items()
            ],
            min_version=wire.encode_version(min_version),
        )
        async for event in rpc.stream(self._stub.Generate, request, idle_timeout):
            assembly.take(event)
        if not assembly.complete:
            raise errors.UnavailableError(f"{self.address}: the stream ended before its group")
        return Group(number, attempt, prompt, assembly.prompt_token_ids, assembly.completions())

    async def stage_weights(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        group: TransferGroup,
        rank: int,
        bucket_bytes: int,
        timeout: float,
    ) -> str:
        """Returns the root that the replica computed over what arrived."""
        request = rollout_pb2.StageWeightsRequest(
            caller=self._caller,
            version=wire.encode_policy(version),
            manifest=wire.encode_manifest(manifest),
            group=wire.encode_transfer_group(group),
            rank=rank,
            bucket_bytes=bucket_bytes,
            timeout_seconds=timeout,
        )
        deadline = timeout + TRANSFER_MARGIN_SECONDS
        return (await rpc.call(self._stub.StageWeights, request, deadline)).root

    async def commit_weights(self, version: PolicyVersion, timeout: float) -> float:
        """Returns the seconds for which generation was paused."""
        request = rollout_pb2.CommitWeightsRequest(
            caller=self._caller, version=wire.encode_policy(version)
        )
        return (await rpc.call(self._stub.CommitWeights, request, timeout)).pause_seconds

    async def abort_weights(self, version: VersionId) -> None:
        request = rollout_pb2.AbortWeightsRequest(
            caller=self._caller, version=wire.encode_version(version)
        )
        await rpc.call(self._stub.AbortWeights, request, CONTROL_SECONDS)


class RewardClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub = reward_pb2_grpc.RewardServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        request = reward_pb2.ScoreGroupRequest(caller=self._caller, group=wire.encode_group(group))
        answer = await rpc.call(self._stub.ScoreGroup, request, timeout)
        return tuple(wire.decode_verdict(verdict) for verdict in answer.verdicts)


@dataclass(frozen=True, slots=True)
class TrainAnswer:
    version: PolicyVersion
    metrics: dict[str, float]


class TrainerClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub = trainer_pb2_grpc.TrainerServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def train_batch(
        self, batch: TrainingBatch, timeout: float, lineage: int = 0
    ) -> TrainAnswer:
        """Idempotent by `batch.step`. The answer is a version of `lineage`."""
        request = trainer_pb2.TrainBatchRequest(
            caller=self._caller, batch=wire.encode_batch(batch), lineage=lineage
        )
        answer = await rpc.call(self._stub.TrainBatch, request, timeout)
        return TrainAnswer(wire.decode_policy(answer.version), dict(answer.metrics))

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        request = trainer_pb2.GetPolicyVersionRequest(caller=self._caller)
        answer = await rpc.call(self._stub.GetPolicyVersion, request, timeout)
        return wire.decode_policy(answer.version), wire.decode_manifest(answer.manifest)

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        """The group with its rendezvous address."""
        request = trainer_pb2.OpenTransferRequest(
            caller=self._caller, group=wire.encode_transfer_group(group), timeout_seconds=timeout
        )
        answer = await rpc.call(self._stub.OpenTransfer, request, timeout)
        return wire.decode_transfer_group(answer.group)

    async def send_weights(
        self, version: VersionId, group_id: int, bucket_bytes: int, timeout: float
    ) -> int:
        """Returns the bytes sent."""
        request = trainer_pb2.SendWeightsRequest(
            caller=self._caller,
            version=wire.encode_version(version),
            group_id=group_id,
            bucket_bytes=bucket_bytes,
            timeout_seconds=timeout,
        )
        deadline = timeout + TRANSFER_MARGIN_SECONDS
        return (await rpc.call(self._stub.SendWeights, request, deadline)).num_bytes

    async def save_checkpoint(self, step: int, timeout: float) -> str:
        request = trainer_pb2.SaveCheckpointRequest(caller=self._caller, step=step)
        return (await rpc.call(self._stub.SaveCheckpoint, request, timeout)).path

    async def export_model(self, path: str, timeout: float) -> str:
        request = trainer_pb2.ExportModelRequest(caller=self._caller, path=path)
        return (await rpc.call(self._stub.ExportModel, request, timeout)).path


class WeightSyncClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub = weight_sync_pb2_grpc.WeightSyncServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def register_replica(self, replica: Replica, timeout: float) -> None:
        request = weight_sync_pb2.RegisterReplicaRequest(
            run_id=self._caller.run_id, replica=wire.encode_replica(replica)
        )
        await rpc.call(self._stub.RegisterReplica, request, timeout)

    async def publish_version(
        self, version: PolicyVersion, timeout: float
    ) -> tuple[Routing, dict[str, float]]:
        """Idempotent by version. Returns once the version is live on the routable replicas."""
        request = weight_sync_pb2.PublishVersionRequest(
            caller=self._caller, version=wire.encode_policy(version)
        )
        answer = await rpc.call(self._stub.PublishVersion, request, timeout)
        return wire.decode_routing(answer.routing), dict(answer.metrics)

    async def get_routing(self) -> Routing:
        request = weight_sync_pb2.GetRoutingRequest(caller=self._caller)
        answer = await rpc.call(self._stub.GetRouting, request, CONTROL_SECONDS)
        return wire.decode_routing(answer.routing)

    async def report_replica(self, name: str, reason: str) -> None:
        request = weight_sync_pb2.ReportReplicaRequest(
            caller=self._caller, name=name, reason=reason
        )
        await rpc.call(self._stub.ReportReplica, request, CONTROL_SECONDS)
