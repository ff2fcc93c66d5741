"""A group put together from the streams of one or more attempts."""

import math

import pytest

from trimaran.clients import GroupAssembly
from trimaran.errors import InternalError
from trimaran.types import PartialCompletion, Prompt, Segment, VersionId
from trimaran.v1 import rollout_pb2
from trimaran.wire import messages as wire

V1, V2 = VersionId(0, 1), VersionId(0, 2)


def opened(token_ids):
    data = wire.encode_token_ids(token_ids)
    return rollout_pb2.GenerateResponse(opened=rollout_pb2.Opened(prompt_token_ids=data))


def chunk(index, start, token_ids, version, replica="rollout-0", logprobs=None):
    segment = Segment(start, start + len(token_ids), version, replica)
    return rollout_pb2.GenerateResponse(
        chunks=[
            rollout_pb2.SegmentChunk(
                index=index,
                segment=wire.encode_segment(segment),
                token_ids=wire.encode_token_ids(token_ids),
                logprobs=wire.encode_logprobs(logprobs or [-0.5] * len(token_ids)),
            )
        ]
    )


def finished(index, reason="stop"):
    return rollout_pb2.GenerateResponse(
        finished=[rollout_pb2.Finished(index=index, finish_reason=reason, text="3")]
    )


def assembled(num_completions, *events):
    assembly = GroupAssembly(num_completions)
    for event in events:
        assembly.take(event)
    return assembly


def test_chunks_of_one_version_merge_and_a_new_version_opens_a_segment():
    chunks = chunk(0, 0, [1, 2], V1), chunk(0, 2, [3], V1), chunk(0, 3, [4], V2)
    assembly = assembled(1, opened([9]), *chunks, finished(0))
    (completion,) = assembly.completions()
    assert completion.token_ids_T == (1, 2, 3, 4)
    assert [(s.start, s.end, s.version) for s in completion.segments] == [(0, 3, V1), (3, 4, V2)]
    assert assembly.prompt_token_ids == (9,)


def test_experts_of_the_prompt_come_once_and_those_of_a_completion_with_its_end():
    assembly = assembled(2, opened([9]), chunk(0, 0, [1, 2], V1), chunk(1, 0, [3], V1))
    for index, experts, prompt_experts in ((1, b"", b"ab"), (0, b"cd", b"")):
        ended = finished(index)
        ended.finished[0].experts, ended.finished[0].prompt_experts = experts, prompt_experts
        assembly.take(ended)
    group = assembly.group(7, 1, Prompt("p", (), "task", ""))
    assert group.prompt_experts == b"ab"
    assert [one.experts for one in group.completions_G] == [b"cd", b""]


def test_after_a_broken_stream_only_the_rest_is_asked_for():
    first = opened([9]), chunk(0, 0, [1], V1), finished(0), chunk(1, 0, [7], V1)
    assembly = assembled(2, *first)
    assert not assembly.complete
    assert assembly.unfinished() == {
        1: PartialCompletion((7,), (-0.5,), (Segment(0, 1, V1, "rollout-0"),))
    }
    for event in (opened([9]), chunk(1, 1, [8], V1, "rollout-1"), finished(1, "length")):
        assembly.take(event)
    first, second = assembly.completions()
    assert (first.finish_reason, second.finish_reason) == ("stop", "length")
    assert second.token_ids_T == (7, 8)
    assert [segment.replica for segment in second.segments] == ["rollout-0", "rollout-1"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logprob_that_is_not_finite_is_refused_with_its_replica(bad):
    """Nothing of the chunk is kept: another replica goes on from before it."""
    assembly = assembled(1, opened([9]), chunk(0, 0, [1], V1))
    reason = f"rollout-3 at version 0.2: the log-probability of token 2 of completion 0 is {bad}"
    with pytest.raises(InternalError, match=reason):
        assembly.take(chunk(0, 1, [2, 3], V2, "rollout-3", [-0.5, bad]))
    kept = PartialCompletion((1,), (-0.5,), (Segment(0, 1, V1, "rollout-0"),))
    assert assembly.unfinished() == {0: kept}
    for event in (chunk(0, 1, [4], V2, "rollout-1"), finished(0)):
        assembly.take(event)
    assert assembly.completions()[0].token_ids_T == (1, 4)


@pytest.mark.parametrize(("num_tokens", "num_logprobs"), [(2, 3), (3, 2), (4, 4)])
def test_a_chunk_that_says_more_or_less_than_it_holds_is_refused(num_tokens, num_logprobs):
    """Tokens that no segment covers would have no maker, and so no proof."""
    event = chunk(0, 0, [1] * 3, V1)
    event.chunks[0].token_ids = wire.encode_token_ids([1] * num_tokens)
    event.chunks[0].logprobs = wire.encode_logprobs([-0.5] * num_logprobs)
    with pytest.raises(InternalError, match="rollout-0: a chunk of .* tokens 0 to 3"):
        GroupAssembly(1).take(event)


def test_a_chunk_that_does_not_follow_is_the_replicas_error_and_is_not_taken():
    assembly = assembled(1, opened([9]), chunk(0, 0, [1, 2], V1))
    with pytest.raises(InternalError, match="begins at token 3; 2 have arrived"):
        assembly.take(chunk(0, 3, [4], V1))
    assert len(assembly.unfinished()[0].token_ids_T) == 2


def test_replicas_that_see_other_pixels_make_no_group_together():
    first, second = opened([9]), opened([9])
    first.opened.image_digest, second.opened.image_digest = "5f0c", "9a11"
    assembly = assembled(1, first, chunk(0, 0, [1], V1), first)
    with pytest.raises(InternalError, match=r"'5f0c' and '9a11'.* same version of transformers"):
        assembly.take(second)
