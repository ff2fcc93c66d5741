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
    shown = {"tools": [tool_form(one) for one in tools]} if tools else {}
    given = {"messages": [{"role": "user", "content": ""}], **shown}
    return ChatCompletionRequest.model_validate(given)
