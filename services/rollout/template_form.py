"""Messages and tools in the form that chat templates take: OpenAI's."""

from __future__ import annotations

import json
from typing import Any

from trimaran.errors import InputError
from trimaran.types import IMAGE_PLACE, Message, Tool, ToolCall


def message_form(message: Message, takes_text: bool = False) -> dict[str, Any]:
    """`takes_text`: the template takes a call's arguments as text; as a mapping otherwise."""
    given = {
        "tool_calls": [call_form(one, takes_text) for one in message.tool_calls],
        "reasoning_content": message.reasoning,
        "tool_call_id": message.call_id,
        "name": message.name,
    }
    said = {key: value for key, value in given.items() if value}
    return {"role": message.role, "content": content_of(message), **said}


def content_of(message: Message) -> str | list[dict[str, str]]:
    """As chat templates take it: the text, or a list of parts where the message has images.

    A message without images may say `IMAGE_PLACE`: there it is text. Raises InputError where a
    message with images has more or fewer places for them.

    Example:
        content_of(Message("user", "<image>How many?", (png,)))
        # [{"type": "image"}, {"type": "text", "text": "How many?"}]
    """
    if not message.images:
        return message.text
    first, *others = message.text.split(IMAGE_PLACE)
    if len(others) != len(message.images):
        raise InputError(
            f"the {message.role} message has {len(message.images)} images and {len(others)} times"
            f" {IMAGE_PLACE} in its text; each image needs one"
        )
    parts = [{"type": "text", "text": first}]
    for text in others:
        parts += [{"type": "image"}, {"type": "text", "text": text}]
    return [part for part in parts if part["type"] == "image" or part["text"]]


def tool_form(tool: Tool) -> dict[str, Any]:
    """Raises InputError for parameters that are no JSON."""
    try:
        parameters = json.loads(tool.parameters or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"tool {tool.name}: its parameters are no JSON schema ({error})") from None
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def call_form(call: ToolCall, takes_text: bool) -> dict[str, Any]:
    """What the policy wrote in the place of a JSON object is one argument of that name."""
    arguments: Any = call.arguments
    if not takes_text:
        arguments = _mapping(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"type": "function", "id": call.call_id, "function": function}


def _mapping(arguments: str) -> dict[str, Any]:
    try:
        said = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        said = None
    return said if isinstance(said, dict) else {"arguments": arguments}
