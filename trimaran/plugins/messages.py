"""Messages as the contracts of plugins have them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from trimaran.plugins.forms import Lenient, Strict
from trimaran.types import Message, ToolCall


class PluginCall(Lenient):
    """A call of a tool."""

    name: str
    arguments: str
    """The text of a JSON object; whatever the policy wrote, where that is none."""
    id: str = ""


class PluginMessage(Strict):
    """One message, without images."""

    role: str
    content: str
    tool_calls: list[PluginCall] = Field(default=[])
    """Of the assistant."""
    tool_call_id: str = ""
    """Of a tool: the call that it answers."""
    name: str = ""
    """Of a tool: its name."""
    reasoning: str = ""
    """Of the assistant: what it thought before, where its template keeps that apart."""


def message_form(message: Message) -> dict[str, object]:
    """A PluginMessage, without what is empty.

    Example: message_form(Message("user", "3 + 4?")) == {"role": "user", "content": "3 + 4?"}
    """
    calls = [
        {"name": call.name, "arguments": call.arguments, "id": call.call_id}
        for call in message.tool_calls
    ]
    others = {
        "tool_calls": calls,
        "tool_call_id": message.call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }
    given = {key: value for key, value in others.items() if value}
    return {"role": message.role, "content": message.text, **given}


def messages_of(messages: Iterable[PluginMessage]) -> tuple[Message, ...]:
    return tuple(map(message_of, messages))


def message_of(message: PluginMessage) -> Message:
    return Message(
        role=message.role,
        text=message.content,
        tool_calls=tuple(
            ToolCall(call.name, call.arguments, call.id) for call in message.tool_calls
        ),
        call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning,
    )
