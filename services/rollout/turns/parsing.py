"""Sampled tokens -> what the policy said, thought and called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.rollout.turns.tool_formats import Parser
from trimaran.types import Message, Tool

if TYPE_CHECKING:
    from services.rollout.chat import ChatTokenizer

THINK, END_OF_THINK = "<think>", "</think>"


def parse(
    chat: ChatTokenizer,
    parser: Parser | None,
    opening: Sequence[int],
    token_ids: Sequence[int],
    prefill: str = "",
    tools: Sequence[Tool] = (),
) -> Message:
    """`opening`: the given tokens before the answer, which begins with `prefill`. Without a parser, and without
    a call, the message is the text."""
    text = prefill + chat.detokenize(token_ids)
    splits = END_OF_THINK in chat.template
    opened = splits and chat.show(opening[-8:]).rstrip().endswith(THINK)
    reasoning, said = split_thoughts(text, opened) if splits else ("", text)
    if parser is None:
        return Message("assistant", said, reasoning=reasoning)
    has_end = bool(token_ids) and token_ids[-1] in chat.stop_token_ids
    written = prefill + chat.show(token_ids[:-1] if has_end else token_ids)
    if splits:
        written = split_thoughts(written, opened)[1]
    beside, calls = parser(written, tools)
    if calls:
        said = _without(beside, chat.special_tokens)
    return Message("assistant", said, tool_calls=calls, reasoning=reasoning)


def _without(text: str, tokens: Sequence[str]) -> str:
    for token in tokens:
        text = text.replace(token, "")
    return text


def split_thoughts(text: str, opened: bool = False) -> tuple[str, str]:
    """What was thought, and what was said. `opened`: the prompt has opened the thought.

    Example: split_thoughts("<think>1, 2</think>3") == ("1, 2", "3")
    """
    begins = text.lstrip().startswith(THINK)
    if not opened and not begins:
        return "", text
    thought, _, said = text.partition(END_OF_THINK)
    if begins:
        thought = thought.lstrip().removeprefix(THINK)
    return thought.strip("\n"), said.lstrip("\n")
