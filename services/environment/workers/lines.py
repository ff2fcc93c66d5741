"""What the service and a worker say to each other: a line of JSON each way, never a pickle.

    {"do": "load"}                               {"plays": false, "rewards": false, "tools": [{…}]}
    {"do": "open", "row": {…}}                   {"said": "…"} or {"opening": [messages, tools]}
    {"do": "call", "calls": [["add", "{…}"]]}    {"answers": [["3", false]]}
    {"do": "reward"}                             {"reward": 1.0}
    {"do": "step", "message": {…}}               {"reply": {…}}
    {"do": "close"}                              {"clean": true}
Each may be answered by {"fault": "ValueError: …"}; "load" also by {"refused": "…"}.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from trimaran.types import Message, Reply, Tool

_message, _reply, _tool = TypeAdapter(Message), TypeAdapter(Reply), TypeAdapter(Tool)
NO_IMAGES = {"images"}
"""No worker is given any."""


def encode_line(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def encode_message(message: Message) -> dict[str, Any]:
    return _message.dump_python(message, exclude=NO_IMAGES)


def decode_message(tree: Any) -> Message:
    """Raises ValueError for what is no message."""
    return _message.validate_python(tree)


def encode_tool(tool: Tool) -> dict[str, Any]:
    return _tool.dump_python(tool)


def decode_tool(tree: Any) -> Tool:
    return _tool.validate_python(tree)


def encode_reply(reply: Reply) -> dict[str, Any]:
    return _reply.dump_python(reply, exclude={"messages": {"__all__": NO_IMAGES}})


def decode_reply(tree: Any) -> Reply:
    return _reply.validate_python(tree)


def decode_reward(tree: Any) -> float | None:
    return None if tree is None else float(tree)


def shortened(text: str, max_chars: int) -> str:
    """At most so long, and saying that it was longer. A text that was shortened stays as it is.

    Example: len(shortened("9" * 1000, 64)) == 64
    """
    if len(text) <= max_chars:
        return text
    note = f"\n[cut: it has {len(text)} characters]"
    return (text[: max(0, max_chars - len(note))] + note)[:max_chars]
