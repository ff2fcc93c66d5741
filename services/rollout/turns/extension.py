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


@dataclass(frozen=True, slots=True)
class Extension:
    """Example: Extension("<|im_end|>", "\\n<|im_start|>user\\nhigher<|im_end|>\\n<|im_start|>assistant\\n")"""

    end_of_turn: str
    """The stop token behind the answer."""
    text: str
    """What follows it."""


def extend(
    messages: Sequence[Message],
    stop_tokens: Collection[str],
    render: Callable[[Sequence[Message]], str],
) -> Extension:
    """`render`: by the chat template, with the opening of the next answer.

    Raises InputError where the template shows the answer no more, or ends it by no stop token.
    """
    rendered = render([*probe(messages), *messages])
    _, mark, rest = rendered.rpartition(MARK)
    if not mark:
        raise InputError(
            "the chat template does not show an answer that other messages follow: no prefix of it can be"
            " kept; set environment.history=template, or use another template"
        )
    found = [(rest.find(token), token) for token in stop_tokens if token in rest]
    if not found:
        raise InputError(
            "the chat template ends no answer by a token that ends a completion"
            f" ({', '.join(sorted(stop_tokens))}): no prefix of it can be kept; set"
            " environment.history=template, or use another template"
        )
    place, end_of_turn = min(found)
    return Extension(end_of_turn, rest[place + len(end_of_turn) :])


def probe(messages: Sequence[Message]) -> list[Message]:
    """What `messages` follow: a question and an answer, which calls what they are results of."""
    results = [one for one in messages if one.role == "tool"]
    arguments = json.dumps({"probe": MARK})
    calls = tuple(
        ToolCall(one.name or "probe", arguments, one.call_id or f"call_{n}")
        for n, one in enumerate(results)
    )
    answer = Message("assistant", "" if calls else MARK, tool_calls=calls)
    return [Message("user", "probe"), answer]
