"""Our types <-> protobuf. No other module builds or takes apart these messages.

`encode_x(value) -> message` and `decode_x(message) -> value`. Token ids are
little-endian int32 and log-probabilities little-endian float32, so a
log-probability comes back as the nearest float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from google.protobuf.message import DecodeError

from trimaran import types
from trimaran.errors import InputError
from trimaran.rewards import Sample
from trimaran.types import MAX_BLOCKS
from trimaran.v1 import (
    environment_pb2,
    reward_pb2,
    rollout_pb2,
    trainer_pb2,
    types_pb2,
    weight_sync_pb2,
)
from trimaran.wire.packed import Logprobs, TokenIds

INT32, FLOAT32 = TokenIds.DTYPE, Logprobs.DTYPE

MAX_ELEMENTS = 2**48
"""Elements of one version."""
MAX_AXES = 16
MAX_GROUP_SIZE = 2**16
MAX_BUCKET_BYTES = 2**32
MAX_SECONDS = 7 * 86400.0


def encode_token_ids(token_ids: Sequence[int]) -> bytes:
    if isinstance(token_ids, TokenIds):
        return token_ids.data
    return np.asarray(token_ids, INT32).tobytes()


def decode_token_ids(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(data, INT32).tolist())


def encode_logprobs(logprobs: Sequence[float]) -> bytes:
    if isinstance(logprobs, Logprobs):
        return logprobs.data
    return np.asarray(logprobs, FLOAT32).tobytes()


def find_not_finite(logprobs: bytes) -> int | None:
    """The place of the first log-probability that is not finite, in what `encode_logprobs` made."""
    values = np.frombuffer(logprobs, FLOAT32)
    # In double precision their sum is finite if, and only if, each of them is.
    with np.errstate(invalid="ignore"):
        if math.isfinite(np.add.reduce(values, dtype=np.float64)):
            return None
    return int(np.isfinite(values).argmin())


def encode_caller(caller: types.Caller) -> types_pb2.Caller:
    return types_pb2.Caller(run_id=caller.run_id, epoch=caller.epoch)


def decode_caller(message: types_pb2.Caller) -> types.Caller:
    return types.Caller(message.run_id, message.epoch)


def encode_version(version: types.VersionId) -> types_pb2.VersionId:
    return types_pb2.VersionId(lineage=version.lineage, step=version.step)


def decode_version(message: types_pb2.VersionId) -> types.VersionId:
    return types.VersionId(message.lineage, message.step)


def encode_policy(policy: types.PolicyVersion) -> types_pb2.PolicyVersion:
    return types_pb2.PolicyVersion(
        run_id=policy.run_id, version=encode_version(policy.version), root=policy.root
    )


def decode_policy(message: types_pb2.PolicyVersion) -> types.PolicyVersion:
    return types.PolicyVersion(message.run_id, decode_version(message.version), message.root)


DIGEST_BYTES = 16


def encode_digests(digests: Sequence[str]) -> bytes:
    return bytes.fromhex("".join(digests))


def decode_digests(data: bytes) -> tuple[str, ...]:
    text, width = data.hex(), 2 * DIGEST_BYTES
    return tuple(text[i : i + width] for i in range(0, len(text), width))


@lru_cache(maxsize=2)  # the same for all replicas: that of a large model takes 0.1 s
def encode_manifest(manifest: types.Manifest) -> types_pb2.Manifest:
    """Shared by all who ask: only to be read, or copied into a request."""
    return types_pb2.Manifest(
        root=manifest.root,
        tensors=[
            types_pb2.TensorInfo(
                name=t.name,
                dtype=t.dtype,
                shape=t.shape,
                axis=t.axis,
                cuts=t.cuts,
                digests=encode_digests(t.digests),
            )
            for t in manifest.tensors
        ],
    )


def decode_manifest(message: types_pb2.Manifest) -> types.Manifest:
    """Raises InputError for tensors that no model has: their sizes are added and multiplied later."""
    for t in message.tensors:
        if len(t.shape) > MAX_AXES:
            raise InputError(f"{t.name}: {len(t.shape)} axes; {MAX_AXES} at most")
    elements = sum(math.prod(max(length, 1) for length in t.shape) for t in message.tensors)
    blocks = sum(1 + len(t.cuts) for t in message.tensors)
    if elements > MAX_ELEMENTS or blocks > MAX_BLOCKS:
        raise InputError(
            f"the manifest names {elements} elements in {blocks} blocks;"
            f" {MAX_ELEMENTS} in {MAX_BLOCKS} at most"
        )
    tensors = tuple(
        types.TensorInfo(
            t.name, t.dtype, tuple(t.shape), t.axis, tuple(t.cuts), decode_digests(t.digests)
        )
        for t in message.tensors
    )
    return types.Manifest(tensors, message.root)


def encode_ranges(ranges: types.Ranges) -> types_pb2.Ranges:
    return types_pb2.Ranges(bounds=[bound for pair in ranges for bound in pair])


def decode_ranges(message: types_pb2.Ranges) -> types.Ranges:
    """Raises InputError unless they ascend and name no more blocks than a version may have."""
    bounds = message.bounds
    if len(bounds) % 2 or list(bounds) != sorted(bounds) or max(bounds, default=0) > MAX_BLOCKS:
        raise InputError(
            f"{len(bounds)} bounds of ranges; they come in ascending pairs, up to {MAX_BLOCKS}"
        )
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


def encode_transfer_group(group: types.TransferGroup) -> types_pb2.TransferGroup:
    return types_pb2.TransferGroup(
        group_id=group.group_id,
        nonce=group.nonce,
        world_size=group.world_size,
        rendezvous=group.rendezvous,
    )


def decode_transfer_group(message: types_pb2.TransferGroup) -> types.TransferGroup:
    """Raises InputError for a number or a size that no group has."""
    if message.group_id >= 2**63 or not 0 < message.world_size <= MAX_GROUP_SIZE:
        raise InputError(
            f"transfer group {message.group_id} of {message.world_size};"
            f" numbers are int64, and 1 to {MAX_GROUP_SIZE} members take part"
        )
    return types.TransferGroup(
        message.group_id, message.nonce, message.world_size, message.rendezvous
    )


def decode_seconds(seconds: float) -> float:
    """A deadline. Raises InputError unless it is more than 0 and no longer than a week."""
    if not 0 < seconds <= MAX_SECONDS:
        raise InputError(f"a deadline of {seconds:g} s; more than 0, {MAX_SECONDS:g} at most")
    return seconds


def encode_limits(limits: types.TransferLimits) -> types_pb2.TransferLimits:
    return types_pb2.TransferLimits(
        bucket_bytes=limits.bucket_bytes, timeout_seconds=limits.timeout
    )


def decode_limits(message: types_pb2.TransferLimits) -> types.TransferLimits:
    """Raises InputError for an empty or a huge bucket, and as `decode_seconds`."""
    size = message.bucket_bytes
    if not 0 < size <= MAX_BUCKET_BYTES:
        raise InputError(f"buckets of {size} bytes; at least 1, {MAX_BUCKET_BYTES} at most")
    timeout = decode_seconds(message.timeout_seconds)
    return types.TransferLimits(bucket_bytes=size, timeout=timeout)


def encode_peer(peer: types.Peer) -> types_pb2.Peer:
    return types_pb2.Peer(relay=peer.relay, key=peer.key, host=peer.host, backend=peer.backend)


def decode_peer(message: types_pb2.Peer) -> types.Peer:
    return types.Peer(message.relay, message.key, message.host, message.backend)


def encode_delta(delta: types.Delta | None) -> types_pb2.Delta | None:
    return delta and types_pb2.Delta(base_root=delta.base_root, sizes=delta.sizes)


def decode_delta(message: types_pb2.Delta) -> types.Delta | None:
    """Raises InputError for sizes that no delta has."""
    if len(message.sizes) > MAX_BLOCKS or sum(message.sizes) > MAX_ELEMENTS:
        raise InputError(f"a delta of {len(message.sizes)} pieces with {sum(message.sizes)} bytes")
    return types.Delta(message.base_root, tuple(message.sizes)) if message.base_root else None


def encode_offer(offer: types.Offer) -> types_pb2.Offer:
    return types_pb2.Offer(
        peer=encode_peer(offer.peer),
        blocks=encode_ranges(offer.blocks),
        memory=offer.memory,
        delta=encode_delta(offer.delta),
    )


def decode_offer(message: types_pb2.Offer) -> types.Offer:
    return types.Offer(
        decode_peer(message.peer),
        decode_ranges(message.blocks),
        message.memory,
        decode_delta(message.delta),
    )


def encode_source(source: types.Source) -> types_pb2.Source:
    match source:
        case types.CollectiveSource(blocks, group, rank, delta):
            return types_pb2.Source(
                collective=types_pb2.CollectiveSource(
                    blocks=encode_ranges(blocks),
                    group=encode_transfer_group(group),
                    rank=rank,
                    delta=encode_delta(delta),
                )
            )
        case types.MemorySource(blocks, path):
            return types_pb2.Source(
                memory=types_pb2.MemorySource(blocks=encode_ranges(blocks), path=path)
            )
        case types.RelaySource(blocks, peers, delta, shared):
            return types_pb2.Source(
                relay=types_pb2.RelaySource(
                    blocks=encode_ranges(blocks),
                    peers=[encode_peer(peer) for peer in peers],
                    delta=encode_delta(delta),
                    shared=shared,
                )
            )


def decode_source(message: types_pb2.Source) -> types.Source:
    """Raises InputError for a source without a transport."""
    match message.WhichOneof("source"):
        case "collective":
            reported = message.collective
            group = decode_transfer_group(reported.group)
            blocks, delta = decode_ranges(reported.blocks), decode_delta(reported.delta)
            return types.CollectiveSource(blocks, group, reported.rank, delta)
        case "memory":
            return types.MemorySource(decode_ranges(message.memory.blocks), message.memory.path)
        case "relay":
            reported = message.relay
            peers = tuple(decode_peer(peer) for peer in reported.peers)
            blocks, delta = decode_ranges(reported.blocks), decode_delta(reported.delta)
            return types.RelaySource(blocks, peers, delta, reported.shared)
        case _:
            raise InputError("a source names no transport; set collective, memory or relay")


def encode_staged(staged: types.Staged) -> types_pb2.Staged:
    return types_pb2.Staged(
        root=staged.root,
        num_blocks=staged.num_blocks,
        bytes_by_transport={str(way): n for way, n in staged.bytes_by_transport.items()},
        path=staged.path,
    )


def decode_staged(message: types_pb2.Staged) -> types.Staged:
    try:
        by_transport = {types.Transport(n): size for n, size in message.bytes_by_transport.items()}
    except ValueError as error:
        raise InputError(f"staged bytes: {error}; run one version of Trimaran everywhere") from None
    return types.Staged(message.root, message.num_blocks, by_transport, message.path)


def encode_proof(proof: types.Proof) -> types_pb2.Proof:
    return types_pb2.Proof(
        version=encode_version(proof.version),
        replica=proof.replica,
        root=proof.root,
        num_blocks=proof.num_blocks,
        num_loaded=proof.num_loaded,
        fault=proof.fault,
    )


def decode_proof(message: types_pb2.Proof) -> types.Proof:
    return types.Proof(
        decode_version(message.version),
        message.replica,
        message.root,
        message.num_blocks,
        message.num_loaded,
        message.fault,
    )


def encode_version_record(record: types.VersionRecord) -> weight_sync_pb2.VersionRecord:
    return weight_sync_pb2.VersionRecord(
        policy=encode_policy(record.policy),
        num_blocks=record.num_blocks,
        num_bytes=record.num_bytes,
        committed_at=record.committed_at,
        proofs=[encode_proof(proof) for proof in record.proofs],
    )


def decode_version_record(message: weight_sync_pb2.VersionRecord) -> types.VersionRecord:
    return types.VersionRecord(
        decode_policy(message.policy),
        message.num_blocks,
        message.num_bytes,
        message.committed_at,
        tuple(decode_proof(proof) for proof in message.proofs),
    )


def encode_replica(replica: types.Replica) -> weight_sync_pb2.Replica:
    return weight_sync_pb2.Replica(name=replica.name, address=replica.address)


def decode_replica(message: weight_sync_pb2.Replica) -> types.Replica:
    return types.Replica(message.name, message.address)


def encode_routing(routing: types.Routing) -> weight_sync_pb2.Routing:
    return weight_sync_pb2.Routing(
        live=encode_policy(routing.live) if routing.live else None,
        routable=[encode_replica(replica) for replica in routing.routable],
        unroutable=routing.unroutable,
        drained=sorted(routing.drained),
    )


def decode_routing(message: weight_sync_pb2.Routing) -> types.Routing:
    return types.Routing(
        live=decode_policy(message.live) if message.HasField("live") else None,
        routable=tuple(decode_replica(replica) for replica in message.routable),
        unroutable=dict(message.unroutable),
        drained=frozenset(message.drained),
    )


def encode_message(message: types.Message) -> types_pb2.Message:
    return types_pb2.Message(
        role=message.role,
        text=message.text,
        images=message.images,
        tool_calls=[
            types_pb2.ToolCall(name=one.name, arguments=one.arguments, call_id=one.call_id)
            for one in message.tool_calls
        ],
        call_id=message.call_id,
        name=message.name,
        reasoning=message.reasoning,
    )


def decode_message(message: types_pb2.Message) -> types.Message:
    return types.Message(
        message.role,
        message.text,
        tuple(message.images),
        tuple(types.ToolCall(c.name, c.arguments, c.call_id) for c in message.tool_calls),
        message.call_id,
        message.name,
        message.reasoning,
    )


def encode_tool(tool: types.Tool) -> types_pb2.Tool:
    return types_pb2.Tool(name=tool.name, description=tool.description, parameters=tool.parameters)


def decode_tool(message: types_pb2.Tool) -> types.Tool:
    return types.Tool(message.name, message.description, message.parameters)


def encode_opening(opening: types.Opening) -> environment_pb2.OpenResponse:
    return environment_pb2.OpenResponse(
        messages=map(encode_message, opening.messages),
        tools=map(encode_tool, opening.tools),
        max_tokens=opening.max_tokens,
    )


def decode_opening(message: environment_pb2.OpenResponse) -> types.Opening:
    return types.Opening(
        tuple(map(decode_message, message.messages)),
        tuple(map(decode_tool, message.tools)),
        message.max_tokens,
    )


def encode_reply(reply: types.Reply) -> environment_pb2.StepResponse:
    return environment_pb2.StepResponse(
        messages=map(encode_message, reply.messages),
        reward=reply.reward,
        done=reply.done,
        num_calls=reply.num_calls,
        num_failures=reply.num_failures,
        sequence=reply.sequence,
        tools=map(encode_tool, reply.tools),
        max_tokens=reply.max_tokens,
    )


def decode_reply(message: environment_pb2.StepResponse) -> types.Reply:
    return types.Reply(
        messages=tuple(map(decode_message, message.messages)),
        reward=message.reward if message.HasField("reward") else None,
        done=message.done,
        num_calls=message.num_calls,
        num_failures=message.num_failures,
        sequence=message.sequence,
        tools=tuple(map(decode_tool, message.tools)),
        max_tokens=message.max_tokens,
    )


def encode_prompt(prompt: types.Prompt) -> types_pb2.Prompt:
    return types_pb2.Prompt(
        prompt_id=prompt.prompt_id,
        messages=map(encode_message, prompt.messages),
        task=prompt.task,
        answer=prompt.answer,
        extras=prompt.extras,
        tools=map(encode_tool, prompt.tools),
    )


def decode_prompt(message: types_pb2.Prompt) -> types.Prompt:
    return types.Prompt(
        prompt_id=message.prompt_id,
        messages=tuple(map(decode_message, message.messages)),
        task=message.task,
        answer=message.answer,
        extras=dict(message.extras),
        tools=tuple(map(decode_tool, message.tools)),
    )


def encode_sampling(sampling: types.Sampling) -> rollout_pb2.Sampling:
    return rollout_pb2.Sampling(
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        num_samples=sampling.num_samples,
        seed=sampling.seed,
        top_p=sampling.top_p if sampling.top_p < 1 else None,
        stop=sampling.stop,
    )


def decode_sampling(message: rollout_pb2.Sampling) -> types.Sampling:
    top_p = message.top_p if message.HasField("top_p") else 1.0
    if not 0 < top_p <= 1:
        raise InputError(f"sampling.top_p: must be above 0 and at most 1 (given: {top_p:g})")
    return types.Sampling(
        *(message.temperature, message.max_tokens, message.num_samples, message.seed, top_p),
        stop=tuple(message.stop),
    )


def encode_segment(segment: types.Segment) -> types_pb2.Segment:
    return types_pb2.Segment(
        start=segment.start,
        end=segment.end,
        version=encode_version(segment.version),
        replica=segment.replica,
    )


def decode_segment(message: types_pb2.Segment) -> types.Segment:
    return types.Segment(
        message.start,
        message.end,
        decode_version(message.version),
        message.replica,
    )


def _write_completion(message: types_pb2.Completion, completion: types.Completion) -> None:
    """Into its place in a larger message: to put a message into another one copies it."""
    message.token_ids = encode_token_ids(completion.token_ids_T)
    message.logprobs = encode_logprobs(completion.logprobs_S)
    message.text = completion.text
    message.finish_reason = completion.finish_reason
    message.segments.extend(map(encode_segment, completion.segments))
    message.experts = completion.experts
    message.turns.extend(map(encode_turn, completion.turns))
    for branch in completion.branches:
        message.branches.add(
            token_ids=encode_token_ids(branch.token_ids_T),
            logprobs=encode_logprobs(branch.logprobs_S),
            segments=map(encode_segment, branch.segments),
            experts=branch.experts,
        )
    if completion.reward is not None:
        message.reward = completion.reward
    message.fault = completion.fault


def encode_turn(turn: types.Turn) -> types_pb2.Turn:
    return types_pb2.Turn(
        message=encode_message(turn.message),
        num_sampled=turn.num_sampled,
        replies=map(encode_message, turn.replies),
        num_given=turn.num_given,
        finish_reason=turn.finish_reason,
        reward=turn.reward,
        seconds=turn.seconds,
        num_calls=turn.num_calls,
        num_failures=turn.num_failures,
        sequence=turn.sequence,
        num_before=turn.num_before,
        num_cached=turn.num_cached,
    )


def decode_turn(message: types_pb2.Turn) -> types.Turn:
    return types.Turn(
        decode_message(message.message),
        message.num_sampled,
        tuple(map(decode_message, message.replies)),
        message.num_given,
        message.finish_reason,
        message.reward if message.HasField("reward") else None,
        message.seconds,
        message.num_calls,
        message.num_failures,
        message.sequence,
        message.num_before,
        message.num_cached,
    )


def _decode_branch(message: types_pb2.Branch) -> types.Branch:
    return types.Branch(
        TokenIds(message.token_ids),
        Logprobs(message.logprobs),
        tuple(map(decode_segment, message.segments)),
        message.experts,
    )


def decode_completion(message: types_pb2.Completion) -> types.Completion:
    return types.Completion(
        token_ids_T=TokenIds(message.token_ids),
        logprobs_S=Logprobs(message.logprobs),
        text=message.text,
        finish_reason=message.finish_reason,
        segments=tuple(decode_segment(segment) for segment in message.segments),
        experts=message.experts,
        turns=tuple(map(decode_turn, message.turns)),
        branches=tuple(map(_decode_branch, message.branches)),
        reward=message.reward if message.HasField("reward") else None,
        fault=message.fault,
    )


def _write_group(message: types_pb2.Group, group: types.Group) -> None:
    message.number = group.number
    message.attempt = group.attempt
    message.prompt.CopyFrom(encode_prompt(group.prompt))
    message.prompt_token_ids = encode_token_ids(group.prompt_token_ids)
    message.image_digest = group.image_digest
    for completion in group.completions_G:
        _write_completion(message.completions.add(), completion)
    message.prompt_experts = group.prompt_experts


def decode_group(message: types_pb2.Group) -> types.Group:
    return types.Group(
        number=message.number,
        attempt=message.attempt,
        prompt=decode_prompt(message.prompt),
        prompt_token_ids=TokenIds(message.prompt_token_ids),
        completions_G=tuple(decode_completion(c) for c in message.completions),
        image_digest=message.image_digest,
        prompt_experts=message.prompt_experts,
    )


def encode_score_request(
    caller: types_pb2.Caller, group: types.Group
) -> reward_pb2.ScoreGroupRequest:
    """What the group is judged by, and no more: log-probabilities alone would double it. A prefill stands in the
    answers' texts, so not in the messages."""
    turns, _ = types.split_prefill(group.prompt.messages)
    messages = tuple(replace(message, images=()) for message in turns)
    return reward_pb2.ScoreGroupRequest(
        caller=caller,
        prompt=encode_prompt(replace(group.prompt, messages=messages)),
        answers=[
            reward_pb2.Answer(
                text=completion.text,
                token_ids=encode_token_ids(completion.token_ids_T),
                finish_reason=completion.finish_reason,
                messages=map(encode_message, conversation_of(completion)),
            )
            for completion in group.completions_G
        ],
    )


def conversation_of(completion: types.Completion) -> tuple[types.Message, ...]:
    """An episode's messages behind the prompt's, without their images."""
    return tuple(
        replace(message, images=())
        for turn in completion.turns
        for message in (turn.message, *turn.replies)
    )


def decode_samples(message: reward_pb2.ScoreGroupRequest) -> tuple[Sample, ...]:
    """In completion order."""
    prompt = decode_prompt(message.prompt)
    return tuple(
        Sample(
            text=answer.text,
            answer=prompt.answer,
            extras=prompt.extras,
            messages=prompt.messages,
            task=prompt.task,
            prompt_id=prompt.prompt_id,
            token_ids=decode_token_ids(answer.token_ids),
            finish_reason=answer.finish_reason,
            conversation=tuple(map(decode_message, answer.messages)),
        )
        for answer in message.answers
    )


def encode_verdict(verdict: types.Verdict) -> types_pb2.Verdict:
    if isinstance(verdict, types.Faulted):
        return types_pb2.Verdict(
            faulted=types_pb2.Faulted(
                fault=verdict.fault, terms=verdict.terms, faulted_terms=verdict.faulted_terms
            )
        )
    return types_pb2.Verdict(
        score=types_pb2.Score(
            reward=verdict.reward,
            terms=verdict.terms,
            indigestible=verdict.indigestible,
            prediction=verdict.prediction,
        )
    )


def decode_verdict(message: types_pb2.Verdict) -> types.Verdict:
    if message.WhichOneof("verdict") == "faulted":
        faulted = message.faulted
        return types.Faulted(faulted.fault, dict(faulted.terms), tuple(faulted.faulted_terms))
    score = message.score
    prediction = score.prediction if score.HasField("prediction") else None
    return types.Score(score.reward, dict(score.terms), score.indigestible, prediction)


def payload_of(scored: types.ScoredGroup) -> bytes:
    """As it is stored and sent."""
    return scored.payload or serialize_scored_group(scored)


def encode_ledger_end(end: types.LedgerEnd) -> trainer_pb2.LedgerEnd:
    return trainer_pb2.LedgerEnd(records=end.records, hash=end.hash)


def decode_ledger_end(message: trainer_pb2.LedgerEnd) -> types.LedgerEnd:
    return types.LedgerEnd(message.records, message.hash)


def encode_expert_loads(loads: types.ExpertLoads) -> trainer_pb2.ExpertLoads:
    return trainer_pb2.ExpertLoads(layer=loads.layer, tokens=loads.tokens_E)


def decode_expert_loads(message: trainer_pb2.ExpertLoads) -> types.ExpertLoads:
    return types.ExpertLoads(message.layer, tuple(message.tokens))


def serialize_scored_group(scored: types.ScoredGroup) -> bytes:
    """The same bytes for the same value, so that their digest can name a payload."""
    return serialize_group(scored.group) + serialize_verdicts(scored)


def serialize_group(group: types.Group) -> bytes:
    """What the scored group begins with, before the verdicts are known: a message is its fields one
    after the other."""
    message = types_pb2.ScoredGroup()
    _write_group(message.group, group)
    return message.SerializeToString(deterministic=True)


def serialize_verdicts(scored: types.ScoredGroup) -> bytes:
    """What the scored group ends with."""
    message = types_pb2.ScoredGroup(
        verdicts=map(encode_verdict, scored.verdicts_G),
        greedy_reward=scored.greedy_reward,
        greedy_segments=map(encode_segment, scored.greedy_segments),
    )
    return message.SerializeToString(deterministic=True)


def parse_scored_group(data: bytes) -> types.ScoredGroup:
    """The group of a payload, which it keeps. Raises InputError for bytes that are none."""
    return replace(decode_scored_group(data), payload=data)


def decode_scored_group(data: bytes) -> types.ScoredGroup:
    """As `parse_scored_group`, for a reader that will not send it on: the payload is not kept."""
    try:
        message = types_pb2.ScoredGroup.FromString(data)
    except DecodeError as error:
        raise InputError(f"{len(data)} bytes are no scored group: {error}") from None
    verdicts_G = tuple(decode_verdict(verdict) for verdict in message.verdicts)
    greedy_reward = message.greedy_reward if message.HasField("greedy_reward") else None
    greedy_segments = tuple(map(decode_segment, message.greedy_segments))
    return types.ScoredGroup(
        decode_group(message.group), verdicts_G, greedy_reward, greedy_segments
    )
