"""Our types <-> protobuf. No other module builds or takes apart these messages.

`encode_x(value) -> message` and `decode_x(message) -> value`; those of a type that has the fields of its message are
`mirrored`. Token ids are
little-endian int32 and log-probabilities little-endian float32, so a
log-probability comes back as the nearest float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

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
from trimaran.wire.mirrored import KNOWN, Codec, mirrored
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


TOKENS = (encode_token_ids, TokenIds)
LOGPROBS = (encode_logprobs, Logprobs)

encode_caller, decode_caller = mirrored(types.Caller, types_pb2.Caller)
encode_version, decode_version = mirrored(types.VersionId, types_pb2.VersionId)
encode_policy, decode_policy = mirrored(types.PolicyVersion, types_pb2.PolicyVersion)


DIGEST_BYTES = 16


def encode_digests(digests: Sequence[str]) -> bytes:
    return bytes.fromhex("".join(digests))


def decode_digests(data: bytes) -> tuple[str, ...]:
    text, width = data.hex(), 2 * DIGEST_BYTES
    return tuple(text[i : i + width] for i in range(0, len(text), width))


def _check_manifest(message: types_pb2.Manifest) -> None:
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


mirrored(types.TensorInfo, types_pb2.TensorInfo, digests=(encode_digests, decode_digests))
_encode_manifest, decode_manifest = mirrored(types.Manifest, types_pb2.Manifest, _check_manifest)


@lru_cache(maxsize=2)  # the same for all replicas: that of a large model takes 0.1 s
def encode_manifest(manifest: types.Manifest) -> types_pb2.Manifest:
    """Shared by all who ask: only to be read, or copied into a request."""
    return _encode_manifest(manifest)


def encode_ranges(ranges: types.Ranges) -> types_pb2.Ranges:
    _write_ranges(ranges, message := types_pb2.Ranges())
    return message


def _write_ranges(ranges: types.Ranges, message: types_pb2.Ranges) -> None:
    message.bounds.extend(bound for pair in ranges for bound in pair)


def decode_ranges(message: types_pb2.Ranges) -> types.Ranges:
    """Raises InputError unless they ascend and name no more blocks than a version may have."""
    bounds = message.bounds
    if len(bounds) % 2 or list(bounds) != sorted(bounds) or max(bounds, default=0) > MAX_BLOCKS:
        raise InputError(
            f"{len(bounds)} bounds of ranges; they come in ascending pairs, up to {MAX_BLOCKS}"
        )
    return tuple(zip(bounds[::2], bounds[1::2], strict=True))


KNOWN[types.Ranges] = Codec(_write_ranges, decode_ranges)


def _check_transfer_group(message: types_pb2.TransferGroup) -> None:
    """Raises InputError for a number or a size that no group has."""
    if message.group_id >= 2**63 or not 0 < message.world_size <= MAX_GROUP_SIZE:
        raise InputError(
            f"transfer group {message.group_id} of {message.world_size};"
            f" numbers are int64, and 1 to {MAX_GROUP_SIZE} members take part"
        )


encode_transfer_group, decode_transfer_group = mirrored(
    types.TransferGroup, types_pb2.TransferGroup, _check_transfer_group
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


def _check_delta(message: types_pb2.Delta) -> None:
    """Raises InputError for sizes that no delta has."""
    if len(message.sizes) > MAX_BLOCKS or sum(message.sizes) > MAX_ELEMENTS:
        raise InputError(f"a delta of {len(message.sizes)} pieces with {sum(message.sizes)} bytes")


encode_peer, decode_peer = mirrored(types.Peer, types_pb2.Peer)
encode_delta, decode_delta = mirrored(types.Delta, types_pb2.Delta, _check_delta)
encode_offer, decode_offer = mirrored(types.Offer, types_pb2.Offer)
SOURCES = {
    "collective": mirrored(types.CollectiveSource, types_pb2.CollectiveSource),
    "memory": mirrored(types.MemorySource, types_pb2.MemorySource),
    "relay": mirrored(types.RelaySource, types_pb2.RelaySource),
}
"""By transport: how a source of it is encoded and decoded."""


def encode_source(source: types.Source) -> types_pb2.Source:
    encode: Any = SOURCES[source.transport][0]
    return types_pb2.Source(**{source.transport: encode(source)})


def decode_source(message: types_pb2.Source) -> types.Source:
    """Raises InputError for a source without a transport."""
    transport = message.WhichOneof("source")
    if transport is None:
        raise InputError("a source names no transport; set collective, memory or relay")
    decode: Any = SOURCES[transport][1]
    return decode(getattr(message, transport))


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


def _check_sampling(message: rollout_pb2.Sampling) -> None:
    if message.HasField("top_p") and not 0 < message.top_p <= 1:
        raise InputError(
            f"sampling.top_p: must be above 0 and at most 1 (given: {message.top_p:g})"
        )


encode_proof, decode_proof = mirrored(types.Proof, types_pb2.Proof)
encode_version_record, decode_version_record = mirrored(
    types.VersionRecord, weight_sync_pb2.VersionRecord
)
encode_replica, decode_replica = mirrored(types.Replica, weight_sync_pb2.Replica)
encode_routing, decode_routing = mirrored(types.Routing, weight_sync_pb2.Routing)
mirrored(types.ToolCall, types_pb2.ToolCall)
encode_message, decode_message = mirrored(types.Message, types_pb2.Message)
encode_tool, decode_tool = mirrored(types.Tool, types_pb2.Tool)
encode_opening, decode_opening = mirrored(types.Opening, environment_pb2.OpenResponse)
encode_reply, decode_reply = mirrored(types.Reply, environment_pb2.StepResponse)
encode_prompt, decode_prompt = mirrored(types.Prompt, types_pb2.Prompt)
encode_sampling, decode_sampling = mirrored(
    types.Sampling,
    rollout_pb2.Sampling,
    _check_sampling,
    top_p=(lambda top_p: top_p if top_p < 1 else None, lambda top_p: top_p or 1.0),
)
encode_segment, decode_segment = mirrored(types.Segment, types_pb2.Segment)
mirrored(types.Turn, types_pb2.Turn)
mirrored(types.Branch, types_pb2.Branch, token_ids_T=TOKENS, logprobs_S=LOGPROBS)
mirrored(types.Completion, types_pb2.Completion, token_ids_T=TOKENS, logprobs_S=LOGPROBS)
mirrored(types.Group, types_pb2.Group, prompt_token_ids=TOKENS)
encode_ledger_end, decode_ledger_end = mirrored(types.LedgerEnd, trainer_pb2.LedgerEnd)
_encode_score, _decode_score = mirrored(types.Score, types_pb2.Score)
_encode_faulted, _decode_faulted = mirrored(types.Faulted, types_pb2.Faulted)


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
        return types_pb2.Verdict(faulted=_encode_faulted(verdict))
    return types_pb2.Verdict(score=_encode_score(verdict))


def decode_verdict(message: types_pb2.Verdict) -> types.Verdict:
    if message.WhichOneof("verdict") == "faulted":
        return _decode_faulted(message.faulted)
    return _decode_score(message.score)


def payload_of(scored: types.ScoredGroup) -> bytes:
    """As it is stored and sent."""
    return scored.payload or serialize_scored_group(scored)


def serialize_scored_group(scored: types.ScoredGroup) -> bytes:
    """The same bytes for the same value, so that their digest can name a payload."""
    return serialize_group(scored.group) + serialize_verdicts(scored)


def serialize_group(group: types.Group) -> bytes:
    """What the scored group begins with, before the verdicts are known: a message is its fields one
    after the other."""
    message = types_pb2.ScoredGroup()
    KNOWN[types.Group].write(group, message.group)
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
        KNOWN[types.Group].decode(message.group), verdicts_G, greedy_reward, greedy_segments
    )
