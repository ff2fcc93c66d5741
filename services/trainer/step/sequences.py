"""The sequences of a completion, each behind its group's prompt: its own, and one more for each branch of an episode.

A pass reads a sequence up to before its last sampled token: what was given behind that one teaches nothing.
"""

from __future__ import annotations

from dataclasses import replace

from trimaran.types import Branch, Completion, Segment


def sequences_of(completion: Completion) -> tuple[Completion | Branch, ...]:
    """Those with sampled tokens."""
    return tuple(one for one in (completion, *completion.branches) if len(one.logprobs_S))


def alone(sequence: Completion | Branch) -> Completion:
    """A completion of this sequence only."""
    if isinstance(sequence, Completion):
        return replace(sequence, branches=())
    ids, logprobs_S = sequence.token_ids_T, sequence.logprobs_S
    return Completion(ids, logprobs_S, "", "", sequence.segments, sequence.experts)


def num_read(sequence: Completion | Branch) -> int:
    """Its tokens that a pass reads."""
    return sequence.segments[-1].end - 1


def total_read(completion: Completion) -> int:
    """Over all its sequences."""
    return sum(map(num_read, sequences_of(completion)))


def segment_of(completion: Completion, number: int) -> Segment:
    """Who made the sampled token of this number, counted over all its sequences."""
    for segment in completion.all_segments:
        number -= segment.end - segment.start
        if number < 0:
            return segment
    raise IndexError(f"the completion has {completion.num_sampled} sampled tokens")


def experts_of(completion: Completion) -> bytes:
    """Which the engine chose for all tokens that a pass reads, sequence by sequence; empty where it did not
    say so of one sequence."""
    sequences = sequences_of(completion)
    is_known = all(one.experts or not num_read(one) for one in sequences)
    return b"".join(one.experts for one in sequences) if is_known else b""
