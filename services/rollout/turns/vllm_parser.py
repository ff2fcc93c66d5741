"""vLLM's own parsers of calls, without its server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.tool_parsers import ToolParserManager

from services.rollout.template_form import tool_form
from trimaran.errors import InputError
from trimaran.types import Tool, ToolCall

# They log a stack for each call that a policy in training writes wrong.
logging.getLogger("vllm.tool_parsers").setLevel(logging.CRITICAL)
ALTERNATIVES = ("anyOf", "oneOf", "allOf")


class VllmToolParser:
    """Example: VllmToolParser("llama3_json", tokenizer).parse('{"name": "add", "parameters": {"a": 1}}', tools)"""

    def __init__(self, name: str, tokenizer: Any) -> None:
        """Raises InputError for a name that vLLM does not know, a form that it reads elsewhere, as gpt-oss', and
        where the tokenizer lacks its tokens."""
        self._tokenizer = tokenizer
        try:
            self._parser = ToolParserManager.get_tool_parser(name)
            self._parser(tokenizer).extract_tool_calls("", _request(()))
        except Exception as error:  # whatever a parser stumbles over
            raise InputError(
                f"environment.tool_format: vllm reads no calls of the form {name!r} here"
                f" ({type(error).__name__}: {error}); name another"
            ) from None

    def parse(self, text: str, tools: Sequence[Tool]) -> tuple[str, tuple[ToolCall, ...]]:
        """What vLLM's parser cannot read stays text."""
        request = _request(tuple(tools))
        try:
            shown: list[Any] = list(request.tools or ())
            found = self._parser(self._tokenizer, shown).extract_tool_calls(text, request)
        except Exception:
            logging.getLogger(__name__).debug("vllm's parser failed", exc_info=True)
            return text, ()
        calls = tuple(
            ToolCall(one.function.name, one.function.arguments, f"call_{n}")
            for n, one in enumerate(found.tool_calls)
        )
        return (found.content or "").strip() if calls else text, calls


@lru_cache(maxsize=64)
def _request(tools: tuple[Tool, ...]) -> ChatCompletionRequest:
    """What a parser looks at beside the text: the tools' schemas. vLLM refuses a list without any."""
    shown = {"tools": [_parser_form(one) for one in tools]} if tools else {}
    given = {"messages": [{"role": "user", "content": ""}], **shown}
    return ChatCompletionRequest.model_validate(given)


def _parser_form(tool: Tool) -> dict[str, Any]:
    """With the types in each argument's own schema: vLLM follows no reference, and takes such an argument for text."""
    form = tool_form(tool)
    parameters = form["function"]["parameters"]
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if isinstance(properties, dict):
        for key, schema in properties.items():
            if found := _types(schema, parameters, set()):
                properties[key] = {**schema, "type": sorted(found)}
    return form


def _types(schema: Any, root: Any, followed: set[str]) -> set[str]:
    """Those that it says, that it refers to, and of its alternatives."""
    if not isinstance(schema, dict):
        return set()
    said, place = schema.get("type"), schema.get("$ref")
    found = {one for one in (said if isinstance(said, list) else [said]) if isinstance(one, str)}
    others = [
        one for key in ALTERNATIVES if isinstance(schema.get(key), list) for one in schema[key]
    ]
    if isinstance(place, str) and place not in followed:
        followed.add(place)
        others.append(_find(place, root))
    return found.union(*(_types(one, root, followed) for one in others))


def _find(place: str, root: Any) -> Any:
    """None where nothing is. Example: _find("#/$defs/Point", schema)"""
    document, *parts = place.split("/")
    found = None if document != "#" else root
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, dict) else None
    return found
