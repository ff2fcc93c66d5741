"""One small client a service; they speak nouns, not messages.

`RunClient` is the public one. The others take the controller's `Caller` once.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from trimaran import errors, rpc, wire
from trimaran.types import (
    Caller,
    Completion,
    Group,
    Manifest,
    Offer,
    PartialCompletion,
    Peer,
    PolicyVersion,
    Prompt,
    Proof,
    Ranges,
    Replica,
    Routing,
    Run,
    RunEvent,
    Sampling,
    Segment,
    Source,
    Staged,
    TrainingBatch,
    TransferGroup,
    TransferLimits,
    Verdict,
    VersionId,
    VersionRecord,
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
        self._stub: Any = run_pb2_grpc.RunServiceStub(self._channel)
        self._run_id = run_id

    async def get_run(self) -> Run:
        request = run_pb2.GetRunRequest(run_id=self._run_id)
        answer: run_pb2.GetRunResponse = await rpc.call(self._stub.GetRun, request, CONTROL_SECONDS)
        return wire.decode_run(answer.run)

    async def cancel_run(self) -> Run:
        request = run_pb2.CancelRunRequest(run_id=self._run_id)
        answer: run_pb2.CancelRunResponse = await rpc.call(
            self._stub.CancelRun, request, CONTROL_SECONDS
        )
        return wire.decode_run(answer.run)

    async def watch_run(
        self, after_sequence: int = 0, idle_timeout: float = 3600.0
    ) -> AsyncIterator[RunEvent]:
        request = run_pb2.WatchRunRequest(run_id=self._run_id, after_sequence=after_sequence)
        async for response in rpc.stream(self._stub.WatchRun, request, idle_timeout):
            yield wire.decode_event(response.event)


@dataclass(slots=True)
class _CompletionAssembly:
    token_ids_T: list[int] = field(default_factory=list[int])
    logprobs_T: list[float] = field(default_factory=list[float])
    segments: list[Segment] = field(default_factory=list[Segment])
    finished: Completion | None = None


class GroupAssembly:
    """Puts a group together from the streams of one or more attempts.

    After a stream broke, pass the same assembly to `generate` on another
    replica: unfinished completions go on from their prefix. A chunk with a
    log-probability that is not finite is not taken, and raises InternalError.
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
            case _:
                pass  # a sign of life

    def _take_chunk(self, chunk: rollout_pb2.SegmentChunk) -> None:
        completion = self._completions_G[chunk.index]
        segment = wire.decode_segment(chunk.segment)
        assert segment.start == len(completion.token_ids_T), "a stream lost a segment"
        logprobs = wire.decode_logprobs(chunk.logprobs)
        for place, logprob in enumerate(logprobs, start=segment.start):
            if not math.isfinite(logprob):
                raise errors.InternalError(
                    f"{segment.replica} at version {segment.version}: the log-probability of token"
                    f" {place} of completion {chunk.index} is {logprob}"
                )
        completion.token_ids_T.extend(wire.decode_token_ids(chunk.token_ids))
        completion.logprobs_T.extend(logprobs)
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
        self._stub: Any = rollout_pb2_grpc.RolloutServiceStub(self._channel)
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
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        keep_live: bool = False,
    ) -> Staged:
        """Fills the replica's shadow; every block is verified when this returns.

        `attempt` names this try. `keep_live`: the live version's copy stays beside the new one.
        """
        request = rollout_pb2.StageWeightsRequest(
            caller=self._caller,
            version=wire.encode_policy(version),
            manifest=wire.encode_manifest(manifest),
            sources=[wire.encode_source(source) for source in sources],
            limits=wire.encode_limits(limits),
            attempt=attempt,
            keep_live=keep_live,
        )
        deadline = limits.timeout + TRANSFER_MARGIN_SECONDS
        answer: rollout_pb2.StageWeightsResponse = await rpc.call(
            self._stub.StageWeights, request, deadline
        )
        return wire.decode_staged(answer.staged)

    async def commit_weights(self, version: PolicyVersion, maker: str, timeout: float) -> float:
        """Returns the seconds for which generation was paused. `maker` is stamped on its tokens."""
        request = rollout_pb2.CommitWeightsRequest(
            caller=self._caller, version=wire.encode_policy(version), maker=maker
        )
        answer: rollout_pb2.CommitWeightsResponse = await rpc.call(
            self._stub.CommitWeights, request, timeout
        )
        return answer.pause_seconds

    async def abort_weights(self, version: VersionId, attempt: str) -> None:
        """Discards what the `stage_weights` with this `attempt` brought, or is bringing."""
        request = rollout_pb2.AbortWeightsRequest(
            caller=self._caller, version=wire.encode_version(version), attempt=attempt
        )
        await rpc.call(self._stub.AbortWeights, request, CONTROL_SECONDS)

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        """Digests of what the engine has loaded, one a block, in ascending order of the blocks.

        Raises OutOfOrderError when `version` is not the replica's live one.
        """
        request = rollout_pb2.ReadBackRequest(
            caller=self._caller,
            version=wire.encode_version(version),
            blocks=wire.encode_ranges(blocks),
            timeout_seconds=timeout,
        )
        deadline = timeout + TRANSFER_MARGIN_SECONDS
        answer: rollout_pb2.ReadBackResponse = await rpc.call(
            self._stub.ReadBack, request, deadline
        )
        return wire.decode_digests(answer.digests)


class RewardClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub: Any = reward_pb2_grpc.RewardServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        request = wire.encode_score_request(self._caller, group)
        answer: reward_pb2.ScoreGroupResponse = await rpc.call(
            self._stub.ScoreGroup, request, timeout
        )
        return tuple(wire.decode_verdict(verdict) for verdict in answer.verdicts)


@dataclass(frozen=True, slots=True)
class TrainAnswer:
    version: PolicyVersion
    metrics: dict[str, float]
    nonfinite: str = ""
    """Why updates of the step were left out, with the groups; empty where all were made."""


class TrainerClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub: Any = trainer_pb2_grpc.TrainerServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def train_batch(
        self,
        batch: TrainingBatch,
        timeout: float,
        lineage: int = 0,
        proofs: Sequence[Proof] = (),
    ) -> TrainAnswer:
        """Idempotent by `batch.step`. The answer is a version of `lineage`.

        `proofs`: one for every version and replica that made tokens of the batch.
        """
        request = trainer_pb2.TrainBatchRequest(
            caller=self._caller,
            batch=wire.encode_batch(batch),
            lineage=lineage,
            proofs=[wire.encode_proof(proof) for proof in proofs],
        )
        answer: trainer_pb2.TrainBatchResponse = await rpc.call(
            self._stub.TrainBatch, request, timeout
        )
        version = wire.decode_policy(answer.version)
        return TrainAnswer(version, dict(answer.metrics), answer.nonfinite)

    async def get_policy_version(self, timeout: float) -> tuple[PolicyVersion, Manifest]:
        request = trainer_pb2.GetPolicyVersionRequest(caller=self._caller)
        answer: trainer_pb2.GetPolicyVersionResponse = await rpc.call(
            self._stub.GetPolicyVersion, request, timeout
        )
        return wire.decode_policy(answer.version), wire.decode_manifest(answer.manifest)

    async def get_offer(self, timeout: float) -> tuple[PolicyVersion, Offer]:
        """What the rank at this address can send."""
        request = trainer_pb2.GetOfferRequest(caller=self._caller)
        answer: trainer_pb2.GetOfferResponse = await rpc.call(self._stub.GetOffer, request, timeout)
        return wire.decode_policy(answer.version), wire.decode_offer(answer.offer)

    async def open_transfer(self, group: TransferGroup, timeout: float) -> TransferGroup:
        """The group with its rendezvous address."""
        request = trainer_pb2.OpenTransferRequest(
            caller=self._caller, group=wire.encode_transfer_group(group), timeout_seconds=timeout
        )
        answer: trainer_pb2.OpenTransferResponse = await rpc.call(
            self._stub.OpenTransfer, request, timeout
        )
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
        request = trainer_pb2.SendWeightsRequest(
            caller=self._caller,
            version=wire.encode_version(version),
            group_id=group_id,
            blocks=wire.encode_ranges(blocks),
            base_root=base_root,
            limits=wire.encode_limits(limits),
        )
        deadline = limits.timeout + TRANSFER_MARGIN_SECONDS
        answer: trainer_pb2.SendWeightsResponse = await rpc.call(
            self._stub.SendWeights, request, deadline
        )
        return answer.num_bytes

    async def save_checkpoint(self, step: int, timeout: float) -> str:
        request = trainer_pb2.SaveCheckpointRequest(caller=self._caller, step=step)
        answer: trainer_pb2.SaveCheckpointResponse = await rpc.call(
            self._stub.SaveCheckpoint, request, timeout
        )
        return answer.path

    async def export_model(self, path: str, timeout: float) -> str:
        request = trainer_pb2.ExportModelRequest(caller=self._caller, path=path)
        answer: trainer_pb2.ExportModelResponse = await rpc.call(
            self._stub.ExportModel, request, timeout
        )
        return answer.path


@dataclass(frozen=True, slots=True)
class Registration:
    incarnation: int
    """Counts the name's registrations; stands in every heartbeat."""
    heartbeat_seconds: float
    """How often to give a sign of life."""


class WeightSyncClient(Client):
    def __init__(self, address: str, caller: Caller) -> None:
        super().__init__(address)
        self._stub: Any = weight_sync_pb2_grpc.WeightSyncServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def register_replica(self, replica: Replica, peer: Peer, timeout: float) -> Registration:
        request = weight_sync_pb2.RegisterReplicaRequest(
            run_id=self._caller.run_id,
            replica=wire.encode_replica(replica),
            peer=wire.encode_peer(peer),
        )
        answer: weight_sync_pb2.RegisterReplicaResponse = await rpc.call(
            self._stub.RegisterReplica, request, timeout
        )
        return Registration(answer.incarnation, answer.heartbeat_seconds)

    async def heartbeat(
        self, name: str, incarnation: int, live: PolicyVersion | None, timeout: float
    ) -> bool:
        """False when weight sync does not know this incarnation: register again."""
        request = weight_sync_pb2.HeartbeatRequest(
            run_id=self._caller.run_id,
            name=name,
            incarnation=incarnation,
            live=wire.encode_policy(live) if live else None,
        )
        answer: weight_sync_pb2.HeartbeatResponse = await rpc.call(
            self._stub.Heartbeat, request, timeout
        )
        return answer.known

    async def publish_version(
        self, version: PolicyVersion, timeout: float
    ) -> tuple[Routing, dict[str, float]]:
        """Idempotent by version. Returns once the version is live on the routable replicas."""
        request = weight_sync_pb2.PublishVersionRequest(
            caller=self._caller, version=wire.encode_policy(version)
        )
        answer: weight_sync_pb2.PublishVersionResponse = await rpc.call(
            self._stub.PublishVersion, request, timeout
        )
        return wire.decode_routing(answer.routing), dict(answer.metrics)

    async def get_routing(self) -> Routing:
        request = weight_sync_pb2.GetRoutingRequest(caller=self._caller)
        answer: weight_sync_pb2.GetRoutingResponse = await rpc.call(
            self._stub.GetRouting, request, CONTROL_SECONDS
        )
        return wire.decode_routing(answer.routing)

    async def report_replica(self, name: str, reason: str) -> None:
        request = weight_sync_pb2.ReportReplicaRequest(
            caller=self._caller, name=name, reason=reason
        )
        await rpc.call(self._stub.ReportReplica, request, CONTROL_SECONDS)

    async def list_proofs(self, versions: Sequence[VersionId]) -> tuple[Proof, ...]:
        request = weight_sync_pb2.ListProofsRequest(
            caller=self._caller, versions=[wire.encode_version(version) for version in versions]
        )
        answer: weight_sync_pb2.ListProofsResponse = await rpc.call(
            self._stub.ListProofs, request, CONTROL_SECONDS
        )
        return tuple(wire.decode_proof(proof) for proof in answer.proofs)

    async def list_versions(self, limit: int = 0) -> tuple[VersionRecord, ...]:
        """Committed versions, newest first; `limit` 0 means all."""
        request = weight_sync_pb2.ListVersionsRequest(run_id=self._caller.run_id, limit=limit)
        answer: weight_sync_pb2.ListVersionsResponse = await rpc.call(
            self._stub.ListVersions, request, CONTROL_SECONDS
        )
        return tuple(wire.decode_version_record(record) for record in answer.versions)

    async def verify_replicas(
        self, names: Sequence[str], timeout: float
    ) -> tuple[tuple[Proof, ...], dict[str, str]]:
        """Proofs after a full read-back, and why a replica that was asked for has none."""
        request = weight_sync_pb2.VerifyReplicasRequest(run_id=self._caller.run_id, names=names)
        answer: weight_sync_pb2.VerifyReplicasResponse = await rpc.call(
            self._stub.VerifyReplicas, request, timeout
        )
        return tuple(wire.decode_proof(proof) for proof in answer.proofs), dict(answer.unroutable)
