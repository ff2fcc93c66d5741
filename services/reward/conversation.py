"""An episode's messages in the forms that others' reward functions and plugins know."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, cast

from trimaran.types import Message, ToolCall


def trl_message(message: Message) -> dict[str, Any]:
    """As TRL 1.16 has it in a run with tools: arguments are a mapping.

    Example: trl_message(Message("tool", "3", name="add")) == {"role": "tool", "name": "add", "content": "3"}
    """
    made: dict[str, Any] = {"role": message.role}
    if message.name:
        made["name"] = message.name
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    made["content"] = message.text
    if message.tool_calls:
        made["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    return made


def _arguments(call: ToolCall) -> Any:
    """A mapping; the text where it is none."""
    try:
        value = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments
    return cast(Any, value) if isinstance(value, dict) else call.arguments


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
