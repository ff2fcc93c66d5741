"""A row's messages and tools, in the forms that chat datasets have: OpenAI's, and those of TRL and verl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from trimaran.config import DatasetSection
from trimaran.data.row_parts import UnusablePartError, text_of
from trimaran.errors import InputError
from trimaran.types import Message, Tool, ToolCall, split_prefill

NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def read_messages(place: str, value: Any, section: DatasetSection) -> tuple[Message, ...]:
    """A text is a user's message. Raises InputError that begins with `place`.

    Example: read_messages("a.jsonl:1", "2 + 2?", section) == (Message("user", "2 + 2?"),)
    """
    if isinstance(value, str) and value:
        return _with_system((Message("user", value),), section.system)
    items = cast(list[Any], value) if isinstance(value, list) else []
    if not items or not all(map(_is_message, items)):
        raise InputError(
            f"{place}: {section.prompt_key!r} must be a text or a list of"
            ' {"role": text, "content": text or parts} messages, and not empty; only an assistant\'s message'
            " with tool_calls may be without content"
        )
    try:
        messages = tuple(map(_message, items))
    except UnusablePartError as error:
        raise InputError(f"{place}: a message of {section.prompt_key!r} has {error}") from None
    if not split_prefill(messages)[0]:
        raise InputError(f"{place}: {section.prompt_key!r} has no message before the assistant's")
    if messages[-1].tool_calls:
        raise InputError(
            f"{place}: {section.prompt_key!r} ends with a call that no message of a tool answers; leave the last"
            " message out, or add what the tool has said"
        )
    return _with_system(messages, section.system)


def has_parts(value: Any) -> bool:
    """Whether the content of a message is a list."""
    messages = cast(list[Any], value) if isinstance(value, list) else []
    return any(isinstance(one.get("content"), list) for one in messages)


def read_tools(place: str, value: Any) -> tuple[Tool, ...]:
    """Of a list of function schemas, or of its JSON text. Raises InputError that begins with `place`.

    Example: read_tools("a.jsonl:1", '[{"type": "function", "function": {"name": "now"}}]')[0].name == "now"
    """
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{place}: 'tools' is a text, and not JSON ({error})") from None
    if not value:
        return ()
    tools = [_tool(item) for item in cast(list[Any], value)] if isinstance(value, list) else [None]
    found = tuple(tool for tool in tools if tool)
    if len(found) < len(tools):
        raise InputError(
            f"{place}: 'tools' must be a list of function schemas,"
            ' {"type": "function", "function": {"name": text, "description": text, "parameters": {…}}}'
        )
    names = [tool.name for tool in found]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"{place}: 'tools' has {twice!r} twice; a name says which is called")
    return found


def _tool(item: Any) -> Tool | None:
    """Of OpenAI's form, or of the function alone; None where it is neither."""
    function = _mapping(_mapping(item).get("function") or item)
    name, about = function.get("name"), function.get("description")
    parameters = function.get("parameters") or NO_PARAMETERS
    if not isinstance(name, str) or not name or not isinstance(parameters, Mapping):
        return None
    schema = json.dumps(_without_nones(parameters), ensure_ascii=False)
    return Tool(name, about if isinstance(about, str) else "", schema)


def message_of(item: Mapping[str, Any]) -> Message:
    """One message, as a row has it. Raises ValueError.

    Example: message_of({"role": "user", "content": "2 + 2?"}) == Message("user", "2 + 2?")
    """
    if not _is_message(item):
        raise ValueError(f"{item!s:.100} is no message; give role and content")
    return _message(item)


def _message(item: Mapping[str, Any]) -> Message:
    """Raises UnusablePartError."""
    assistants = item["role"] == "assistant"
    return Message(
        item["role"],
        text_of(item.get("content") or ""),
        tool_calls=tuple(map(_call, item.get("tool_calls") or ())) if assistants else (),
        call_id=item.get("tool_call_id") or "",
        name=item.get("name") or "",
        reasoning=(item.get("reasoning_content") or "") if assistants else "",
    )


def _call(item: Any) -> ToolCall:
    """Of OpenAI's form, or of the function alone."""
    function = _mapping(_mapping(item).get("function") or item)
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(arguments, Mapping) or arguments is None:
        arguments = json.dumps(_without_nones(arguments or {}), ensure_ascii=False)
    if not isinstance(name, str) or not name or not isinstance(arguments, str):
        raise UnusablePartError(
            'a call of a tool that is not {"id": text, "function": {"name": text, "arguments": JSON text or'
            " mapping}}"
        )
    call_id = _mapping(item).get("id")
    return ToolCall(name, arguments, call_id if isinstance(call_id, str) else "")


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


def _is_message(item: Any) -> bool:
    message = _mapping(item)
    texts = ("tool_call_id", "name", "reasoning_content")
    if not isinstance(message.get("role"), str) or any(
        not isinstance(message.get(key), str | None) for key in texts
    ):
        return False
    if not isinstance(message.get("tool_calls"), list | None):
        return False
    may_lack = message["role"] == "assistant" and bool(message.get("tool_calls"))
    return isinstance(message.get("content"), str | list) or (
        may_lack and message.get("content") is None
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], value) if isinstance(value, Mapping) else {}


def _without_nones(value: Any) -> Any:
    """Arrow gives each mapping of a column the keys of all of them, with None where it had none."""
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value).items()
        return {key: _without_nones(one) for key, one in items if one is not None}
    return (
        [_without_nones(one) for one in cast(list[Any], value)]
        if isinstance(value, list)
        else value
    )


def _with_system(messages: tuple[Message, ...], system: str | None) -> tuple[Message, ...]:
    """`system` goes before messages that have none of their own."""
    if system is None or any(message.role == "system" for message in messages):
        return messages
    return (Message("system", system), *messages)
