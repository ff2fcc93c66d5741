"""Every value comes back from the wire as it went."""

import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran import types
from trimaran.errors import InputError
from trimaran.v1 import types_pb2
from trimaran.wire import messages as wire

texts = st.text(max_size=20)
token_ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8).map(tuple)
logprobs = st.lists(st.floats(-1e4, 0, width=32), max_size=8).map(tuple)
uint32 = st.integers(0, 2**32 - 1)
rewards = st.floats(allow_nan=False)
terms = st.dictionaries(texts, rewards, max_size=3)

callers = st.builds(types.Caller, texts, st.integers(0, 2**64 - 1))
versions = st.builds(types.VersionId, uint32, uint32)
policies = st.builds(types.PolicyVersion, texts, versions, texts)
numbers = st.lists(st.integers(0, 2**10), max_size=4).map(tuple)
digests = st.binary(min_size=16, max_size=16).map(bytes.hex)
tensors = st.builds(
    types.TensorInfo,
    texts,
    texts,
    numbers,
    uint32,
    numbers,
    st.lists(digests, max_size=3).map(tuple),
)
manifests = st.builds(types.Manifest, st.lists(tensors, max_size=3).map(tuple), texts)
transfer_groups = st.builds(
    types.TransferGroup,
    st.integers(0, 2**63 - 1),
    texts,
    st.integers(1, wire.MAX_GROUP_SIZE),
    texts,
)
ranges = st.lists(st.integers(0, types.MAX_BLOCKS), max_size=3, unique=True).map(
    lambda bounds: tuple(pairwise(sorted(bounds)))
)
peers = st.builds(types.Peer, texts, texts, texts)
deltas = st.none() | st.builds(types.Delta, texts.filter(bool), numbers)
offers = st.builds(types.Offer, peers, ranges, texts, deltas)
sources = st.one_of(
    st.builds(types.CollectiveSource, ranges, transfer_groups, uint32, deltas),
    st.builds(types.MemorySource, ranges, texts),
    st.builds(types.RelaySource, ranges, st.lists(peers, max_size=2).map(tuple), deltas),
)
limits_of_transfers = st.builds(
    types.TransferLimits,
    bucket_bytes=st.integers(1, wire.MAX_BUCKET_BYTES),
    timeout=st.floats(0.001, wire.MAX_SECONDS),
)
stages = st.builds(
    types.Staged,
    texts,
    uint32,
    st.dictionaries(st.sampled_from(types.Transport), st.integers(0, 2**63)),
)
proofs = st.builds(types.Proof, versions, texts, texts, uint32, uint32, texts)
version_records = st.builds(
    types.VersionRecord,
    policies,
    uint32,
    uint32,
    st.floats(0, 2e9),
    st.lists(proofs, max_size=2).map(tuple),
)
replicas = st.builds(types.Replica, texts, texts)
routings = st.builds(
    types.Routing,
    st.none() | policies,
    st.lists(replicas, max_size=3).map(tuple),
    st.dictionaries(texts, texts, max_size=3),
)
tool_calls = st.builds(types.ToolCall, texts, texts, texts)
tools = st.builds(types.Tool, texts, texts, texts)
messages = st.builds(
    types.Message,
    texts,
    texts,
    st.lists(st.binary(max_size=9), max_size=2).map(tuple),
    st.lists(tool_calls, max_size=2).map(tuple),
    texts,
    texts,
    texts,
)
prompts = st.builds(
    types.Prompt,
    texts,
    st.lists(messages, max_size=3).map(tuple),
    texts,
    texts,
    st.dictionaries(texts, texts, max_size=3),
    st.lists(tools, max_size=2).map(tuple),
)
samplings = st.builds(
    types.Sampling,
    st.floats(0, 10),
    uint32,
    uint32,
    st.integers(0, 2**64 - 1),
    st.floats(0, 1, exclude_min=True),
    st.lists(texts, max_size=2).map(tuple),
)
segments = st.builds(types.Segment, uint32, uint32, versions, texts)
turns = st.builds(
    types.Turn,
    messages,
    uint32,
    st.lists(messages, max_size=2).map(tuple),
    uint32,
    texts,
    st.none() | rewards,
    st.floats(0, 1e6),
    uint32,
    uint32,
    uint32,
)
branches = st.builds(
    types.Branch,
    token_ids,
    logprobs,
    st.lists(segments, max_size=3).map(tuple),
    st.binary(max_size=9),
)
completions = st.builds(
    types.Completion,
    token_ids,
    logprobs,
    texts,
    texts,
    st.lists(segments, max_size=3).map(tuple),
    st.binary(max_size=9),
    st.lists(turns, max_size=2).map(tuple),
    st.lists(branches, max_size=2).map(tuple),
    st.none() | rewards,
    texts,
)
groups = st.builds(
    types.Group,
    st.integers(0, 2**64 - 1),
    uint32,
    prompts,
    token_ids,
    st.lists(completions, max_size=3).map(tuple),
    texts,
    st.binary(max_size=9),
)
verdicts = st.builds(types.Score, rewards, terms, st.booleans(), st.none() | texts) | st.builds(
    types.Faulted, texts, terms, st.lists(texts, max_size=3).map(tuple)
)
scored_groups = st.builds(
    types.ScoredGroup,
    groups,
    st.lists(verdicts, max_size=3).map(tuple),
    st.none() | rewards,
    st.lists(segments, max_size=2).map(tuple),
)

TYPES = {
    "caller": callers,
    "version": versions,
    "policy": policies,
    "manifest": manifests,
    "ranges": ranges,
    "peer": peers,
    "offer": offers,
    "source": sources,
    "limits": limits_of_transfers,
    "staged": stages,
    "proof": proofs,
    "version_record": version_records,
    "transfer_group": transfer_groups,
    "replica": replicas,
    "routing": routings,
    "prompt": prompts,
    "sampling": samplings,
    "segment": segments,
    "verdict": verdicts,
}


@pytest.mark.parametrize("kind", TYPES)
@given(data=st.data())
def test_round_trip(kind, data):
    value = data.draw(TYPES[kind])
    message = getattr(wire, f"encode_{kind}")(value)
    received = type(message).FromString(message.SerializeToString())
    assert getattr(wire, f"decode_{kind}")(received) == value


@given(scored_groups)
def test_payload_bytes_are_a_function_of_the_noun(scored):
    data = wire.serialize_scored_group(scored)
    assert wire.parse_scored_group(data) == scored
    assert wire.serialize_scored_group(wire.parse_scored_group(data)) == data
    assert data == types_pb2.ScoredGroup.FromString(data).SerializeToString(deterministic=True)


def test_a_group_that_is_none_is_refused():
    with pytest.raises(InputError, match="1 bytes are no scored group"):
        wire.parse_scored_group(b"\xff")


@given(groups)
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
    "a shape of 2^63": (wire.decode_manifest, tensor(shape=[2**63])),
    "a product of 2^64": (wire.decode_manifest, tensor(shape=[2**32, 2**32])),
    "a product of 2^80 that is 0": (wire.decode_manifest, tensor(shape=[2**40, 2**40, 0])),
    "a hundred axes": (wire.decode_manifest, tensor(shape=[1] * 100)),
    "2^20 cuts": (wire.decode_manifest, tensor(shape=[2**30], cuts=range(2**20))),
    "2^26 blocks": (wire.decode_ranges, types_pb2.Ranges(bounds=[0, 2**26])),
    "a bound too much": (wire.decode_ranges, types_pb2.Ranges(bounds=[0, 2, 4])),
    "falling ranges": (wire.decode_ranges, types_pb2.Ranges(bounds=[4, 6, 0, 2])),
    "the same block again and again": (wire.decode_ranges, types_pb2.Ranges(bounds=[0, 9] * 4)),
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
    "no end": (wire.decode_seconds, float("inf")),
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
