"""How a policy's message becomes actions of an OpenEnv server, and how its observations become text.

A server says in GET /schema what its actions are. One whose actions are calls of its own tools is asked for
them; any other is shown to the policy as one tool, `act`, with the fields of an action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import JsonValue

from trimaran.errors import InputError
from trimaran.types import Message, Tool, ToolCall

ACT = "act"
LIST_TOOLS = {"type": "list_tools"}
OPTIONS = ("message", "observation", "reset")


@dataclass(frozen=True, slots=True)
class OpenEnvOptions:
    """`environment.options` for an OpenEnv server."""

    message: str | None = None
    """The field of an action that the text of a message without calls becomes."""
    observation: str | None = None
    """The field of an observation that the policy reads; all of them where it is not given."""
    reset: Mapping[str, JsonValue] | None = None
    """Further arguments of reset, beside the row's columns."""

    @classmethod
    def read(cls, options: Mapping[str, JsonValue]) -> OpenEnvOptions:
        """Raises InputError."""
        for name, value in options.items():
            if name not in OPTIONS:
                known = ", ".join(OPTIONS)
                raise InputError(f"environment.options.{name}: an OpenEnv server has {known}")
            if not isinstance(value, dict if name == "reset" else str):
                kind = "a mapping" if name == "reset" else "the name of a field"
                raise InputError(f"environment.options.{name}: give {kind}")
        return cls(**cast(dict[str, Any], dict(options)))


@dataclass(frozen=True, slots=True)
class OpenEnvAction:
    """One step. `call`: whose answer it gives; None for a message's text."""

    data: Mapping[str, Any]
    call: ToolCall | None = None
    fault: str = ""
    """Why it is no action, for the policy; nothing is sent then."""


class Actions:
    """Of one server. Example: Actions(schema["action"], OpenEnvOptions()).of(Message("assistant", "hello"))"""

    def __init__(self, schema: Mapping[str, Any], options: OpenEnvOptions) -> None:
        fields: Mapping[str, Any] = schema.get("properties") or {}
        self._fields = {name: field for name, field in fields.items() if name != "metadata"}
        self.are_calls = not self._fields or {"tool_name", "arguments"} <= set(self._fields)
        self._schema, self._options = schema, options

    @property
    def tool(self) -> Tool:
        """What the policy sees of an action."""
        title = self._schema.get("description") or self._schema.get("title") or "an action"
        parameters = {**self._schema, "properties": self._fields}
        return Tool(ACT, f"Acts in the environment: {title}", json.dumps(parameters))

    def of(self, message: Message) -> list[OpenEnvAction]:
        """In order; none where a message without calls says nothing to a server of tools."""
        if message.tool_calls:
            return [self._of_call(call) for call in message.tool_calls]
        return [] if self.are_calls else [OpenEnvAction({self._text_field: message.text})]

    def _of_call(self, call: ToolCall) -> OpenEnvAction:
        if not self.are_calls and call.name != ACT:
            return OpenEnvAction(
                {}, call, f"error: there is no tool {call.name!r}; the tool is {ACT}"
            )
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            return OpenEnvAction(
                {}, call, f"error: the arguments of {call.name} are no JSON: {error}"
            )
        if not isinstance(arguments, dict):
            return OpenEnvAction(
                {}, call, f"error: the arguments of {call.name} are no JSON object"
            )
        if self.are_calls:
            arguments = {"type": "call_tool", "tool_name": call.name, "arguments": arguments}
        return OpenEnvAction(cast(dict[str, Any], arguments), call)

    @property
    def _text_field(self) -> str:
        """The one that is named, `message`, or the only one that an action must have."""
        if self._options.message is not None:
            return self._options.message
        required: Sequence[str] = self._schema.get("required") or ()
        return required[0] if len(required) == 1 and "message" not in self._fields else "message"


def text_of(observation: Mapping[str, JsonValue], options: OpenEnvOptions) -> str:
    """Of a single text the text, else JSON; "" where there is nothing to read."""
    if options.observation is not None:
        observation = {"": observation.get(options.observation, "")}
    fields = [value for name, value in observation.items() if name != "metadata"]
    if len(fields) == 1 and isinstance(fields[0], str):
        return fields[0]
    shown = {name: value for name, value in observation.items() if name != "metadata"}
    return json.dumps(shown.get("", shown), ensure_ascii=False) if shown else ""


def tools_of(observation: Mapping[str, Any]) -> tuple[Tool, ...]:
    """Of an answer to LIST_TOOLS."""
    return tuple(
        Tool(
            tool["name"], tool.get("description") or "", json.dumps(tool.get("input_schema") or {})
        )
        for tool in observation.get("tools", ())
    )


def tool_answer(observation: Mapping[str, Any]) -> tuple[str, bool] | None:
    """Text of a called tool, and whether it failed; None for an observation of another kind."""
    if not {"tool_name", "result"} <= observation.keys():
        return None
    if error := observation.get("error"):
        return f"error: {error.get('message')}", True
    result = observation["result"]
    content: Any = result.get("content") if isinstance(result, dict) else None
    if isinstance(content, list):
        texts = [part.get("text", "") for part in cast(list[dict[str, Any]], content)]
        return "\n".join(texts), bool(cast(dict[str, Any], result).get("is_error"))
    return result if isinstance(result, str) else json.dumps(result), False
