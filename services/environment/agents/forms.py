"""Requests and answers in OpenAI's form of chat completions.

What a request asks for and does not get is refused, with the field's name; temperature, top_p and seed are
taken and not followed, since the run's own sampling counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from services.environment.agents.sequences import Request
from trimaran.errors import InputError
from trimaran.types import Message, Tool, ToolCall, Usage

ROLES = {"developer": "system"}
"""What chat templates call the roles that they have no name for."""
REMEDIES = {
    "n": "a request has one answer; leave it out",
    "tool_choice": "a call is neither forced nor forbidden; leave it out, and let the framework's output be text, too",
    "parallel_tool_calls": "a turn may have several calls; leave it out",
    "response_format": "the policy is not constrained; leave it out",
    "logprobs": "they stay with the run; leave it out",
    "frequency_penalty": "nothing is penalized; leave it out",
    "presence_penalty": "nothing is penalized; leave it out",
}
"""By the field that asks for more than there is."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Part(_Form):
    type: Literal["text"]
    text: str


class _Function(_Form):
    name: str
    arguments: str = ""


class _Call(_Form):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function


class _Message(_Form):
    """What a program sends back of an answer has more fields than these; they say nothing to the policy."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _FunctionOfTool(_Form):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, JsonValue] = Field(default_factory=dict)


class _Tool(_Form):
    type: Literal["function"]
    function: _FunctionOfTool


class _StreamOptions(_Form):
    include_usage: bool | None = None


class _TextFormat(_Form):
    type: Literal["text"]


class ChatRequest(BaseModel):
    """The body of a request. Example: ChatRequest.read(b'{"model": "policy", "messages": []}')"""

    model_config = ConfigDict(extra="forbid")

    model: str
    messages: Annotated[list[_Message], Field(min_length=1)]
    tools: list[_Tool] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    # Where they ask for more than this, they are refused, with the field's remedy.
    n: Literal[1] | None = None
    tool_choice: Literal["auto"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    response_format: _TextFormat | None = None
    logprobs: Literal[False] | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    # The run's own sampling counts.
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    # They are for a provider's own accounts.
    user: str | None = None
    metadata: JsonValue = None
    store: bool | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    @classmethod
    def read(cls, body: bytes) -> ChatRequest:
        """Raises InputError naming the field."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            raise InputError(_refusal(error)) from None

    @property
    def stops(self) -> frozenset[str]:
        return frozenset([self.stop] if isinstance(self.stop, str) else self.stop or ())

    @property
    def with_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def to_request(self) -> Request:
        messages = decode_messages(self.messages)
        tools = tuple(
            Tool(
                one.function.name,
                one.function.description or "",
                json.dumps(one.function.parameters, ensure_ascii=False),
            )
            for one in self.tools or ()
        )
        bounds = [bound for bound in (self.max_tokens, self.max_completion_tokens) if bound]
        return Request(messages, tools, min(bounds, default=0))


def _refusal(error: ValidationError) -> str:
    first = error.errors()[0]
    where = [str(part) for part in first["loc"]]
    if not where:
        return f"the body: {first['msg']}; send JSON"
    if remedy := REMEDIES.get(where[0]):
        return f"{where[0]}: {remedy}"
    return f"{'.'.join(where)}: {first['msg']}; docs/agents.md lists what the endpoint takes"


def decode_messages(messages: Sequence[_Message]) -> tuple[Message, ...]:
    """A tool's answer gets the name of the function that was called."""
    decoded: list[Message] = []
    names: dict[str, str] = {}
    for one in messages:
        calls = tuple(
            ToolCall(call.function.name, call.function.arguments, call.id)
            for call in one.tool_calls or ()
        )
        names |= {call.call_id: call.name for call in calls}
        call_id = one.tool_call_id or ""
        decoded.append(
            Message(
                ROLES.get(one.role, one.role),
                _text(one.content),
                tool_calls=calls,
                call_id=call_id,
                name=names.get(call_id, "") if one.role == "tool" else "",
            )
        )
    return tuple(decoded)


def _text(content: str | list[_Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)


def encode_message(message: Message) -> dict[str, Any]:
    """As it stands in an answer, and in the row that a program is given."""
    encoded: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        encoded["content"] = message.text or None
        encoded["tool_calls"] = [_encode_call(call) for call in message.tool_calls]
    if message.reasoning:
        encoded["reasoning_content"] = message.reasoning
    if message.role == "tool":
        encoded["tool_call_id"] = message.call_id
    return encoded


def _encode_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def encode_tool(tool: Tool) -> dict[str, Any]:
    parameters = json.loads(tool.parameters or "{}")
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def finish_reason_of(message: Message, finish_reason: str) -> str:
    """OpenAI's word for how a turn ended."""
    return "tool_calls" if message.tool_calls and finish_reason == "stop" else finish_reason


def whole_answer(
    head: Mapping[str, Any], message: Message, finish_reason: str, usage: Usage
) -> dict[str, Any]:
    """`head`: id, created and model."""
    choice = {
        "index": 0,
        "message": encode_message(message),
        "logprobs": None,
        "finish_reason": finish_reason_of(message, finish_reason),
    }
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _encode_usage(usage)}


def streamed_answer(
    head: Mapping[str, Any],
    message: Message,
    finish_reason: str,
    usage: Usage,
    with_usage: bool,
) -> Iterator[str]:
    """Server-sent events: the role, the text, the calls, the end, and the usage where it is asked for."""
    encoded = encode_message(message)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if message.reasoning:
        deltas.append({"reasoning_content": message.reasoning})
    if message.text:
        deltas.append({"content": message.text})
    for index, call in enumerate(encoded.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, **call}]})
    head = {**head, "object": "chat.completion.chunk"}
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        yield _event({**head, "choices": [choice]})
    end = {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": finish_reason_of(message, finish_reason),
    }
    yield _event({**head, "choices": [end]})
    if with_usage:
        yield _event({**head, "choices": [], "usage": _encode_usage(usage)})
    yield "data: [DONE]\n\n"


def _encode_usage(usage: Usage) -> dict[str, int]:
    prompt, own = usage.num_prompt_tokens, usage.num_tokens
    return {"prompt_tokens": prompt, "completion_tokens": own, "total_tokens": prompt + own}


def _event(tree: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(tree, ensure_ascii=False)}\n\n"
