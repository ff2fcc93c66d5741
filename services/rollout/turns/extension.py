"""What a chat template adds for the messages that follow an answer.

The template's own difference: a conversation of two messages is rendered with the new ones behind it, and what
stands behind the token that ends its answer is theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.types import Message, ToolCall

MARK = "zqx7493"
"""What the probe's answer says: no template writes it by itself."""
REMEDY = "set environment.history=template, or use another chat template"
Render = Callable[[Sequence[Message]], str]
"""By the chat template, with the opening of the next answer. Raises InputError."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Example: Ends(stops=("<|im_end|>",), special=("<|im_start|>", "<|im_end|>"))"""

    stops: Collection[str]
    """The tokens that end a completion."""
    special: Collection[str] = ()
    """All that only templates write. Where no stop token ends an answer, the first of them does: gpt-oss stops at
    <|return|>, which its template shows as <|end|>."""

    def first(self, text: str) -> str:
        return _first(text, self.stops) or _first(text, self.special)


@dataclass(frozen=True, slots=True)
class Extension:
    """Example: Extension("<|im_end|>", "\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n")"""

    end_of_turn: str
    """The token behind the answer. Of GLM-4.5, whose turns have no end of their own, what begins the next message."""
    text: str
    """What follows it."""


def extend(messages: Sequence[Message], ends: Ends, render: Render) -> Extension:
    """Raises InputError where the template does not show the answer any more, or ends it by no such token."""
    _, mark, rest = _rendered(messages, render).rpartition(MARK)
    if not mark:
        raise InputError(
            f"the chat template hides an answer that other messages follow: no prefix can be kept; {REMEDY}"
        )
    end_of_turn = ends.first(rest)
    if not end_of_turn:
        raise InputError(
            f"the chat template ends this turn by no special token: no prefix can be kept; {REMEDY}"
        )
    return Extension(end_of_turn, rest.partition(end_of_turn)[2])


def _rendered(messages: Sequence[Message], render: Render) -> str:
    """With a question and an answer before `messages`, and the opening of the next answer."""
    calls = calls_before(messages)
    try:
        text = render([*probe(calls), *messages])
    except InputError:
        if len(calls) < 2:
            raise
        # Llama 3.1 takes one call alone, whose results may be several.
        text = render([*probe(calls[:1]), *messages])
    # One that shows no calls shows the answer's text.
    return text if MARK in text else render([*probe(), *messages])


def _first(text: str, tokens: Collection[str]) -> str:
    """Of `tokens` the one that comes first in `text`; "" without one."""
    found = [(text.find(token), token) for token in tokens if token in text]
    return min(found)[1] if found else ""


def calls_before(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """Those whose results `messages` have."""
    results = [one for one in messages if one.role == "tool"]
    arguments = json.dumps({"probe": MARK})
    return tuple(
        ToolCall(one.name or "probe", arguments, one.call_id or f"call{n:05}")
        for n, one in enumerate(results)
    )


def probe(calls: tuple[ToolCall, ...] = (), reasoning: str = "") -> list[Message]:
    """A question and an answer that ends with the mark."""
    text = "" if calls else MARK
    return [
        Message("user", "probe"),
        Message("assistant", text, tool_calls=calls, reasoning=reasoning),
    ]
