"""The tokens of an episode: appended as they are given and sampled, and never made again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from trimaran.types import Branch, Completion, Segment
from trimaran.wire.messages import encode_logprobs, encode_token_ids
from trimaran.wire.packed import Logprobs, TokenIds


@dataclass(slots=True)
class TokenSequence:
    """One sequence of an episode, its prompt included.

    Example:
        sequence = TokenSequence()
        sequence.give((1, 2, 3))                      # the opening
        sequence.sample(completion)                   # the policy's turn
        sequence.give((4, 5))                         # what the environment said
        sequence.behind(3).token_ids_T                # all but the opening
    """

    num_tokens: int = 0
    num_opening: int = 0
    """Given tokens before the first sampled one."""
    token_ids: list[bytes] = field(default_factory=list[bytes])
    logprobs: list[bytes] = field(default_factory=list[bytes])
    segments: list[Segment] = field(default_factory=list[Segment])
    experts: bytes = b""
    """As `Completion.experts`, of all tokens but the last; those of the last turn's engine."""

    def give(self, token_ids: Sequence[int]) -> None:
        self.token_ids.append(encode_token_ids(token_ids))
        self.num_tokens += len(token_ids)
        if not self.segments:
            self.num_opening = self.num_tokens

    def sample(self, turn: Completion) -> None:
        self.token_ids.append(encode_token_ids(turn.token_ids_T))
        self.logprobs.append(encode_logprobs(turn.logprobs_S))
        self.segments += _shifted(turn.segments, self.num_tokens)
        self.num_tokens += len(turn.token_ids_T)

    @property
    def all_ids(self) -> TokenIds:
        return TokenIds(b"".join(self.token_ids))

    def behind(self, num_shared: int) -> Branch:
        """What stands behind the tokens that the group shares."""
        data = b"".join(self.token_ids)
        return Branch(
            TokenIds(data[num_shared * TokenIds.DTYPE.itemsize :]),
            Logprobs(b"".join(self.logprobs)),
            tuple(_shifted(self.segments, -num_shared)),
            self.experts[self.expert_bytes(num_shared) :],
        )

    def expert_bytes(self, num_tokens: int) -> int:
        """What the experts of so many of its tokens take."""
        return len(self.experts) // max(self.num_tokens - 1, 1) * num_tokens

    def continued_by(self, token_ids: Sequence[int]) -> Sequence[int] | None:
        """What `token_ids` add to it; None where they do not begin with it."""
        ids = _array(token_ids)
        is_same = len(ids) >= self.num_tokens and np.array_equal(
            ids[: self.num_tokens], _array(self.all_ids)
        )
        return tuple(ids[self.num_tokens :].tolist()) if is_same else None


def _shifted(segments: Iterable[Segment], by: int) -> list[Segment]:
    return [replace(one, start=one.start + by, end=one.end + by) for one in segments]


def shared_opening(sequences: Sequence[TokenSequence]) -> int:
    """How many tokens all of them begin with, none of them sampled."""
    if not sequences:
        return 0
    first, *others = [_array(one.all_ids)[: one.num_opening] for one in sequences]
    length = len(first)
    for ids in others:
        length = min(length, len(ids))
        differing = np.flatnonzero(first[:length] != ids[:length])
        length = int(differing[0]) if len(differing) else length
    return length


def _array(token_ids: Sequence[int]) -> Any:
    return np.asarray(token_ids, np.int32)
