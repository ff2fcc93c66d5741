"""What the service and a worker say to each other: a line of JSON each way, never a pickle.

    {"do": "load"}                               {"plays": false, "rewards": false, "tools": [["add", "Add…", "{…}"]]}
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

from trimaran.types import Message, Reply, Tool, ToolCall


def encode_line(tree: Any) -> bytes:
    return json.dumps(tree, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def encode_message(message: Message) -> dict[str, Any]:
    """Without its images, which no worker is given."""
    return {
        "role": message.role,
        "text": message.text,
        "tool_calls": [[call.name, call.arguments, call.call_id] for call in message.tool_calls],
        "call_id": message.call_id,
        "name": message.name,
        "reasoning": message.reasoning,
    }


def decode_message(tree: Any) -> Message:
    """Raises ValueError, KeyError or TypeError for what is no message."""
    return Message(
        role=_text(tree["role"]),
        text=_text(tree["text"]),
        tool_calls=tuple(ToolCall(*map(_text, call)) for call in tree["tool_calls"]),
        call_id=_text(tree["call_id"]),
        name=_text(tree["name"]),
        reasoning=_text(tree["reasoning"]),
    )


def encode_tool(tool: Tool) -> list[str]:
    return [tool.name, tool.description, tool.parameters]


def decode_tool(tree: Any) -> Tool:
    return Tool(*map(_text, tree))


def encode_reply(reply: Reply) -> dict[str, Any]:
    return {
        "messages": [encode_message(message) for message in reply.messages],
        "reward": reply.reward,
        "done": reply.done,
        "counts": [reply.num_calls, reply.num_failures, reply.sequence],
        "tools": [encode_tool(tool) for tool in reply.tools],
    }


def decode_reply(tree: Any) -> Reply:
    """Raises as `decode_message` does."""
    num_calls, num_failures, sequence = map(int, tree["counts"])
    return Reply(
        messages=tuple(map(decode_message, tree["messages"])),
        reward=decode_reward(tree["reward"]),
        done=bool(tree["done"]),
        num_calls=num_calls,
        num_failures=num_failures,
        sequence=sequence,
        tools=tuple(map(decode_tool, tree["tools"])),
    )


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


def _text(tree: Any) -> str:
    if isinstance(tree, str):
        return tree
    raise ValueError(f"{tree!r:.100} is no text")
