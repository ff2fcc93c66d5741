"""Texts of samples as a page has them: cut, and turn by turn."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from trimaran.ledger.episode_words import tell_episode
from trimaran.run.answers import RunEpisode

SUMMARY, EXCERPT = 240, 1500
"""Characters: of what stands there at once, and of what opens."""


class Excerpt(NamedTuple):
    """Example: excerpt("short") == Excerpt("short", "", 0)"""

    summary: str
    text: str
    """What opens; empty where the summary is all."""
    num_left_out: int
    """Characters."""


def excerpt(text: str) -> Excerpt:
    """The beginning of a text that a page of many samples shows."""
    lines = text.split("\n", 3)
    summary = "\n".join(lines[:3])[:SUMMARY]
    if summary == text:
        return Excerpt(text, "", 0)
    return Excerpt(summary, text[:EXCERPT], max(0, len(text) - EXCERPT))


class Said(NamedTuple):
    """Example: Said("calls", "calls", 'add({"a": 1})')"""

    kind: str
    """turn, thinks, says, calls, reply or end."""
    who: str
    text: str


OWN = frozenset(("thinks", "says", "calls", "end"))


def conversation(episode: RunEpisode | None) -> Sequence[Said]:
    """In the words of `trimaran samples`; empty for an answer of one turn."""
    lines = tell_episode(episode) if episode else ()
    return [Said(_kind(who), who, text) for who, text in lines]


def _kind(who: str) -> str:
    if re.fullmatch(r"turn \d+", who):
        return "turn"
    return who if who in OWN else "reply"
