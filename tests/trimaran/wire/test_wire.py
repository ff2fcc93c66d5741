"""Every value comes back from the wire as it went."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran import types
from trimaran.errors import InputError
from trimaran.v1 import types_pb2
from trimaran.wire import messages as wire

texts = st.text(max_size=20)
uint32, uint64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
numbers = st.lists(st.integers(0, 2**10), max_size=4).map(tuple)

DRAWN: dict[Any, st.SearchStrategy[Any]] = {
    int: uint32,
    str: texts,
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=9),
    NoneType: st.none(),
    Sequence[int]: st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(tuple),
    Sequence[float]: st.lists(st.floats(-1e4, 0, width=32), max_size=8).map(tuple),
    types.Ranges: st.lists(st.integers(0, types.MAX_BLOCKS), max_size=3, unique=True).map(
        lambda bounds: tuple(pairwise(sorted(bounds)))
    ),
}
"""Values by their annotation."""


def drawn(hint: Any) -> st.SearchStrategy[Any]:
    if hint in DRAWN:
        return DRAWN[hint]
    if is_dataclass(hint):
        return nouns(hint)
    parts = [drawn(part) for part in get_args(hint) if part is not ...]
    match get_origin(hint):
        case kind if kind is UnionType:
            return st.one_of(parts)
        case kind if kind is Mapping:
            return st.dictionaries(*parts, max_size=3)
        case kind:
            return st.lists(*parts, max_size=2).map(kind)


def nouns(kind: Any, **bounded: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """`bounded`: fields of which the wire holds more, or less, than their annotation says."""
    hints = get_type_hints(kind)
    others = {one.name: drawn(hints[one.name]) for one in fields(kind) if one.name not in bounded}
    return st.builds(kind, **others, **bounded)


digests = st.lists(st.binary(min_size=16, max_size=16).map(bytes.hex), max_size=3).map(tuple)
DRAWN |= {
    types.Caller: nouns(types.Caller, epoch=uint64),
    types.TensorInfo: nouns(types.TensorInfo, shape=numbers, cuts=numbers, digests=digests),
    types.TransferGroup: nouns(
        types.TransferGroup,
        group_id=st.integers(0, 2**63 - 1),
        world_size=st.integers(1, wire.MAX_GROUP_SIZE),
    ),
    types.Delta: nouns(types.Delta, base_root=texts.filter(bool), sizes=numbers),
    types.TransferLimits: nouns(
        types.TransferLimits,
        bucket_bytes=st.integers(1, wire.MAX_BUCKET_BYTES),
        timeout=st.floats(0.001, wire.MAX_SECONDS),
    ),
    types.Staged: nouns(
        types.Staged,
        bytes_by_transport=st.dictionaries(st.sampled_from(types.Transport), uint64),
    ),
    types.VersionRecord: nouns(types.VersionRecord, num_bytes=uint64),
    types.Sampling: nouns(
        types.Sampling,
        seed=uint64,
        top_p=st.floats(0, 1, exclude_min=True),
        temperature=st.floats(0),
    ),
    types.Group: nouns(types.Group, number=uint64),
    types.ScoredGroup: nouns(types.ScoredGroup, payload=st.just(b"")),
}
NOUNS = {
    "caller": types.Caller,
    "version": types.VersionId,
    "policy": types.PolicyVersion,
    "manifest": types.Manifest,
    "ranges": types.Ranges,
    "peer": types.Peer,
    "offer": types.Offer,
    "source": types.Source,
    "limits": types.TransferLimits,
    "staged": types.Staged,
    "proof": types.Proof,
    "version_record": types.VersionRecord,
    "transfer_group": types.TransferGroup,
    "replica": types.Replica,
    "routing": types.Routing,
    "prompt": types.Prompt,
    "sampling": types.Sampling,
    "segment": types.Segment,
    "verdict": types.Verdict,
    "opening": types.Opening,
    "reply": types.Reply,
}


@pytest.mark.parametrize("kind", NOUNS)
@given(data=st.data())
def test_round_trip(kind, data):
    value = data.draw(drawn(NOUNS[kind]))
    message = getattr(wire, f"encode_{kind}")(value)
    received = type(message).FromString(message.SerializeToString())
    assert getattr(wire, f"decode_{kind}")(received) == value


@given(drawn(types.ScoredGroup))
def test_payload_bytes_are_a_function_of_the_noun(scored):
    data = wire.serialize_scored_group(scored)
    assert wire.parse_scored_group(data) == scored
    assert wire.serialize_scored_group(wire.parse_scored_group(data)) == data
    assert data == types_pb2.ScoredGroup.FromString(data).SerializeToString(deterministic=True)


def test_a_group_that_is_none_is_refused():
    with pytest.raises(InputError, match="1 bytes are no scored group"):
        wire.parse_scored_group(b"\xff")


@given(drawn(types.Group))
def test_a_group_is_judged_by_its_texts_tokens_and_prompt(group):
    request = wire.encode_score_request(wire.encode_caller(types.Caller("run", 1)), group)
    samples = wire.decode_samples(request)
    assert [(s.text, s.token_ids, s.finish_reason) for s in samples] == [
        (c.text, c.token_ids_T, c.finish_reason) for c in group.completions_G
    ]
    prompt = group.prompt
    expected = tuple(replace(message, images=()) for message in prompt.messages)
    for sample in samples:
        assert (sample.answer, sample.extras, sample.task) == (
            prompt.answer,
            prompt.extras,
            prompt.task,
        )
        assert sample.messages == expected  # without images


def test_bulk_arrays_are_little_endian():
    assert wire.encode_token_ids([1, -2]) == struct.pack("<ii", 1, -2)
    assert wire.encode_logprobs([-0.5]) == struct.pack("<f", -0.5)


def test_a_manifest_is_encoded_once_for_all_replicas():
    tensors = (types.TensorInfo("w", "F32", (8,), cuts=(4,), digests=("0" * 32, "1" * 32)),)
    manifest = types.Manifest(tensors, "root")
    message = wire.encode_manifest(manifest)
    assert wire.encode_manifest(replace(manifest)) is message
    other = replace(manifest, tensors=(replace(tensors[0], dtype="BF16"),))
    assert wire.decode_manifest(wire.encode_manifest(other)) == other  # whatever root it names


def tensor(**fields):
    return types_pb2.Manifest(tensors=[types_pb2.TensorInfo(name="w", dtype="U8", **fields)])


def limits(bucket_bytes, timeout_seconds=1.0):
    return types_pb2.TransferLimits(bucket_bytes=bucket_bytes, timeout_seconds=timeout_seconds)


HOSTILE = {
    "bytes by a transport that we do not know": (
        wire.decode_staged,
        types_pb2.Staged(bytes_by_transport={"pigeon": 4}),
    ),
    "a product of 2^64": (wire.decode_manifest, tensor(shape=[2**32, 2**32])),
    "a product of 2^80 that is 0": (wire.decode_manifest, tensor(shape=[2**40, 2**40, 0])),
    "a hundred axes": (wire.decode_manifest, tensor(shape=[1] * 100)),
    "2^20 cuts": (wire.decode_manifest, tensor(shape=[2**30], cuts=range(2**20))),
    "2^26 blocks": (wire.decode_ranges, types_pb2.Ranges(bounds=[0, 2**26])),
    "a bound too much": (wire.decode_ranges, types_pb2.Ranges(bounds=[0, 2, 4])),
    "falling ranges": (wire.decode_ranges, types_pb2.Ranges(bounds=[4, 6, 0, 2])),
    "a group of 2^63": (
        wire.decode_transfer_group,
        types_pb2.TransferGroup(group_id=2**63, world_size=2),
    ),
    "2^32 members": (
        wire.decode_transfer_group,
        types_pb2.TransferGroup(group_id=1, world_size=2**32 - 1),
    ),
    "nobody": (wire.decode_transfer_group, types_pb2.TransferGroup(group_id=1)),
    "pieces of 2^64 bytes": (
        wire.decode_delta,
        types_pb2.Delta(base_root="r", sizes=[2**63, 2**63]),
    ),
    "no time": (wire.decode_seconds, 0.0),
    "no number": (wire.decode_seconds, float("nan")),
    "no bucket": (wire.decode_limits, limits(0)),
    "a bucket of 2^63": (wire.decode_limits, limits(2**63)),
    "a transfer without an end": (wire.decode_limits, limits(1, float("inf"))),
    "a source of no transport": (wire.decode_source, types_pb2.Source()),
    "a group of nobody": (
        wire.decode_source,
        types_pb2.Source(collective=types_pb2.CollectiveSource(rank=1)),
    ),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_out_of_bounds_is_refused_as_input(what):
    decode, message = HOSTILE[what]
    with pytest.raises(InputError):
        decode(message)


@pytest.mark.parametrize("top_p", [0.0, -0.5, 1.5, float("nan")])
def test_a_top_p_that_is_none_is_refused(top_p: float) -> None:
    message = wire.encode_sampling(types.Sampling(1.0, 8, 1))
    assert not message.HasField("top_p")
    message.top_p = top_p
    with pytest.raises(InputError, match="top_p: must be above 0 and at most 1"):
        wire.decode_sampling(message)
