"""The tokens of a completion as a page shows them: sampled ones with their log-probability and maker, and
given ones between them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.manager.pages.samples.vocabulary import Vocabulary, text_of
from trimaran.types import Branch, Completion, Segment

MAX_TOKENS = 4096
"""Of a page."""
BOUNDS = tuple(map(math.log, (0.01, 0.05, 0.2, 0.5, 0.9)))
"""Log-probabilities, ascending, at which the colour changes."""
NUM_COLOURS = 6
"""Of makers."""


@dataclass(frozen=True, slots=True)
class ShownToken:
    """Example: ShownToken(17, 1232, " the", -0.11, level=1)"""

    place: int
    """In its sequence, from 0 on."""
    token_id: int
    text: str
    logprob: float | None
    """None for a given one."""
    level: int = 0
    """0 for a likely one to 5 for an unlikely one."""


@dataclass(frozen=True, slots=True)
class ShownRun:
    """Tokens that follow each other and have one maker."""

    maker: tuple[str, str] | None
    """(version, replica); None where they were given."""
    colour: int
    tokens: Sequence[ShownToken]


@dataclass(frozen=True, slots=True)
class ShownTokens:
    runs: Sequence[ShownRun]
    colours: Mapping[tuple[str, str], int]
    """Of each maker of the whole sequence."""
    num_sampled: int
    num_given: int
    mean_logprob: float | None
    """Of the sampled ones of the sequence."""


def sequences(completion: Completion) -> Sequence[Completion | Branch]:
    """More than one where an episode's history was rewritten."""
    return (completion, *completion.branches)


def show_tokens(
    made: Completion | Branch, vocabulary: Vocabulary | None, page: int = 1
) -> ShownTokens:
    """A page of a sequence."""
    first, size = (page - 1) * MAX_TOKENS, len(made.token_ids_T)
    last = min(first + MAX_TOKENS, size)
    makers = dict.fromkeys(_maker(segment) for segment in made.segments)
    colours = {maker: index % NUM_COLOURS for index, maker in enumerate(makers)}
    runs: list[ShownRun] = []
    for start, end, segment, sampled in _stretches(made.segments, size):
        places = range(max(start, first), min(end, last))
        if not places:
            continue
        maker = _maker(segment) if segment else None
        colour = colours[maker] if maker else 0
        tokens = [
            _token(made, vocabulary, at, sampled + at - start if segment else None) for at in places
        ]
        runs.append(ShownRun(maker, colour, tokens))
    num_sampled = len(made.logprobs_S)
    mean = math.fsum(made.logprobs_S) / num_sampled if num_sampled else None
    return ShownTokens(runs, colours, num_sampled, size - num_sampled, mean)


def _stretches(
    segments: Sequence[Segment], size: int
) -> Iterator[tuple[int, int, Segment | None, int]]:
    """(start, end, who made it, sampled tokens before it), also of what was given between segments."""
    at = sampled = 0
    for segment in segments:
        yield at, segment.start, None, sampled
        yield segment.start, segment.end, segment, sampled
        at = segment.end
        sampled += segment.end - segment.start
    yield at, size, None, sampled


def _token(
    made: Completion | Branch, vocabulary: Vocabulary | None, place: int, sampled: int | None
) -> ShownToken:
    token = made.token_ids_T[place]
    text = text_of(vocabulary, token)
    if sampled is None:
        return ShownToken(place, token, text, None)
    logprob = made.logprobs_S[sampled]
    level = len(BOUNDS) - bisect_right(BOUNDS, logprob)
    return ShownToken(place, token, text, logprob, level)


def _maker(segment: Segment) -> tuple[str, str]:
    return str(segment.version), segment.replica
