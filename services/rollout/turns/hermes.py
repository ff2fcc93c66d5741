"""Calls in the form of Hermes, which Qwen2.5 and Qwen3 have too: <tool_call>{"name": …, "arguments": {…}}</tool_call>"""

from __future__ import annotations

import json
import re
from typing import Any

from trimaran.types import ToolCall

CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')


def parse_hermes(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """The text without its calls, and these. One that is no JSON object with a name keeps what was written as
    its arguments.

    Example: parse_hermes('Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>') is
    ("Well.", (ToolCall("add", '{"a": 1}', "call_0"),))
    """
    written = CALL.findall(text)
    if not written:
        return text, ()
    calls = tuple(_call(one.strip(), f"call_{n}") for n, one in enumerate(written))
    return CALL.sub("", text).strip(), calls


def _call(written: str, call_id: str) -> ToolCall:
    try:
        said: Any = json.loads(written)
        name, arguments = said["name"], said.get("arguments", {})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        found = NAME.search(written)
        return ToolCall(found[1] if found else "", written, call_id)
    # Some write the arguments as text, as OpenAI's interface has them.
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(name), text, call_id)
