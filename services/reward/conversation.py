"""An episode as the text that verl's reward functions know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby

from trimaran.types import Message


def verl_transcript(conversation: Sequence[Message]) -> str:
    """What verl decodes of a response in ChatML with calls in the hermes form, its default: all turns, and what was
    given between them, without special tokens. So it is here for every model.

    Example: verl_transcript((Message("assistant", "CALC 2*3"), Message("user", "6"), Message("assistant", "6.")))
    is "CALC 2*3\\nuser\\n6\\nassistant\\n6."
    """
    blocks = list(_blocks(conversation))
    return "\n".join(
        [text if place == 0 else f"{role}\n{text}" for place, (role, text) in enumerate(blocks)]
    )


def _blocks(conversation: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Tools' answers that follow each other are one message of the user there."""
    for is_tool, run in groupby(conversation, key=lambda message: message.role == "tool"):
        if is_tool:
            answers = (f"<tool_response>\n{message.text}\n</tool_response>" for message in run)
            yield "user", "\n".join(answers)
        else:
            yield from ((message.role, _hermes(message)) for message in run)


def _hermes(message: Message) -> str:
    thought = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    calls = (
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.tool_calls
    )
    return thought + "\n".join([*filter(None, [message.text]), *calls])


def verl_turns(conversation: Sequence[Message]) -> int:
    """verl's num_turns: the policy's, those between them, and the prompt."""
    return 1 + len([0 for _ in groupby(conversation, key=lambda one: one.role == "assistant")])
