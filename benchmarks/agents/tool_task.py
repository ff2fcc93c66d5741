"""A task with one tool: its rows, and a model folder whose chat template shows tools."""

from __future__ import annotations

import json
import random
from pathlib import Path

NUM_ROWS = 80
TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\nYou can call these functions:\\n<tools>' }}
{%- for tool in tools %}
{{- '\\n' + (tool | tojson) }}
{%- endfor %}
{{- '\\n</tools>\\nWrite a call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}
{%- if message.role == 'tool' %}
{{- '<tool_response>' + message.content + '</tool_response>' }}
{%- else %}
{{- message.content or '' }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}"""
"""Hermes' form on ChatML: what was said stays as it was."""


def make_model(source: Path, folder: Path) -> Path:
    """`source` with the template, by links."""
    folder.mkdir()
    for file in source.iterdir():
        if file.name != "chat_template.jinja":
            (folder / file.name).symlink_to(file.resolve())
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def write_rows(path: Path) -> None:
    """{"prompt": messages with two worked examples, "answer"}: as TRL and Trimaran read them."""
    numbers = random.Random(7)
    pairs = [(numbers.randint(11, 99), numbers.randint(11, 99)) for _ in range(NUM_ROWS)]
    examples = [*_worked(12, 34), *_worked(57, 21)]
    rows = ({"prompt": [*examples, _question(a, b)], "answer": str(a * b)} for a, b in pairs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _worked(a: int, b: int) -> list[dict[str, str]]:
    call = json.dumps({"name": "multiply", "arguments": {"a": a, "b": b}})
    return [
        _question(a, b),
        {"role": "assistant", "content": f"<tool_call>{call}</tool_call>"},
        {"role": "tool", "content": str(a * b)},
        {"role": "assistant", "content": f"{a} * {b} = {a * b}"},
    ]


def _question(a: int, b: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {a} * {b}?"}
