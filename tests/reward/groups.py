"""A group with given texts."""

from __future__ import annotations

from collections.abc import Sequence

from trimaran.types import Completion, Group, Message, Prompt, Segment, VersionId


def group_of(texts: Sequence[str], answer: str = "right") -> Group:
    segment = Segment(0, 1, VersionId(0, 0), "rollout-0")
    completions = [Completion((1,), (-0.5,), text, "stop", (segment,)) for text in texts]
    prompt = Prompt("t:1", (Message("user", "?"),), "t", answer)
    return Group(0, 0, prompt, (1,), tuple(completions))
