from __future__ import annotations

from services.controller.episodes.tokens import TokenSequence
from trimaran.types import Completion, Segment, VersionId


def sampled(*token_ids: int) -> Completion:
    segments = (Segment(0, len(token_ids), VersionId(0, 1), "r"),)
    return Completion(token_ids, (-1.0,) * len(token_ids), "", "stop", segments)


def test_experts_stand_behind_what_is_shared_as_the_tokens_do() -> None:
    """Two bytes a token: its own number, twice."""
    sequence = TokenSequence()
    sequence.give((1, 2, 3))
    sequence.sample(sampled(7, 8))
    sequence.give((4,))
    sequence.sample(sampled(9, 6))
    sequence.experts = bytes(token for token in (1, 2, 3, 7, 8, 4, 9) for _ in range(2))
    behind = sequence.behind(2)
    assert [*behind.token_ids_T] == [3, 7, 8, 4, 9, 6]
    assert behind.experts == bytes((3, 3, 7, 7, 8, 8, 4, 4, 9, 9))
    assert sequence.experts[: sequence.expert_bytes(2)] == bytes((1, 1, 2, 2))


def test_experts_that_are_not_known_stay_so() -> None:
    sequence = TokenSequence()
    sequence.give((1, 2))
    sequence.sample(sampled(7))
    assert sequence.behind(1).experts == b""
