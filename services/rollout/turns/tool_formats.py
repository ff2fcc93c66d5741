"""How models write their calls, by name: `environment.tool_format`.

Hermes' form is read here, on every engine; the others by vLLM's own parsers, where vLLM is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from services.rollout.turns.hermes import parse_hermes
from trimaran.errors import InputError
from trimaran.types import Tool, ToolCall

HERMES = "hermes"
SIGNS = {
    "<function=": "qwen3_coder",
    "<arg_key>": "glm45",
    "<tool_call>": HERMES,
    "<|tool_call>": "gemma4",
    "<|tool_call_start|>": "lfm2",
    "<atem:": "muse_glimmer",
    "<｜tool▁calls▁begin｜>": "deepseek_v3",
    "[TOOL_CALLS]": "mistral",
    '"parameters": dictionary': "llama3_json",
}
"""What a chat template says where it asks for calls, and vLLM's name of the form. The first that it says counts."""

Parser = Callable[[str, Sequence[Tool]], tuple[str, tuple[ToolCall, ...]]]
"""What the policy wrote, with its special tokens, and the tools that it was shown -> the text beside its calls, and these."""


def find_format(template: str) -> str:
    """The form that a chat template asks for; "" for none that is known."""
    return next((name for sign, name in SIGNS.items() if sign in template), "")


def load_parser(name: str, tokenizer: Any) -> Parser:
    """`tokenizer`: of transformers. Raises InputError for a form that cannot be read here."""
    if name == HERMES:
        return lambda text, _: parse_hermes(text)
    try:
        from services.rollout.turns.vllm_parser import VllmToolParser
    except ImportError as error:
        raise InputError(
            f"environment.tool_format: {name} is read by vllm's parser, which is not here ({error}); install"
            f" vllm, or use a model whose chat template asks for {HERMES}"
        ) from None
    return VllmToolParser(name, tokenizer).parse
