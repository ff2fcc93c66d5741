"""A tiny random model that calls a tool in most of its turns: tokens that its tokenizer does not need are calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.tiny_model import SHAPE, write_tiny_model

TEMPLATE = (
    "{% for t in tools or [] %}{{ 'tool: ' + t['function']['name'] + '\\n' }}{% endfor %}"
    "{% for m in messages %}{{ m['role'] + ': ' + (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}{{ '<tool_call>' + c['function'] | tojson + '</tool_call>' }}{% endfor %}"
    "{{ '<end>\\n' if m['role'] == 'assistant' else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
NUMBERS = ({"a": 1, "b": 2}, {"a": 3, "b": 4})
"""What the model calls ADD with."""
ADD = """
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.

    Args:
        a: the first
        b: the second
    \"\"\"
    return a + b
"""


def write_calling_model(folder: Path, tool: str, arguments: Sequence[Mapping[str, object]]) -> Path:
    """A token calls `tool` with one of `arguments`."""
    return write_speaking_model(folder, calls_of(tool, arguments))


def calls_of(tool: str, arguments: Sequence[Mapping[str, object]]) -> list[str]:
    calls = [json.dumps({"name": tool, "arguments": one}) for one in arguments]
    return [f"<tool_call>{call}</tool_call>" for call in calls]


def write_speaking_model(folder: Path, texts: Sequence[str]) -> Path:
    """Each token that the tokenizer does not need is one of `texts`."""
    model = write_tiny_model(folder)
    give_texts(model, texts, int(str(SHAPE["vocab_size"])))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def give_texts(model: Path, texts: Sequence[str], vocab_size: int) -> None:
    path = model / "tokenizer.json"
    tree = json.loads(path.read_text())
    vocabulary = tree["model"]["vocab"]
    for number in range(len(vocabulary), vocab_size):
        # White space makes each its own.
        vocabulary[texts[number % len(texts)] + " " * number] = number
    path.write_text(json.dumps(tree))
