"""Messages of an episode -> given tokens, and sampled tokens -> a message of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.rollout.turns.extension import extend
from services.rollout.turns.hermes import parse_hermes
from trimaran.types import Message, ToolCall

if TYPE_CHECKING:
    from services.rollout.chat import ChatTokenizer

THINK, END_OF_THINK = "<think>", "</think>"


class TurnTokenizer:
    """Example:
    turns = TurnTokenizer(chat)
    given = turns.extend(prefix[-1], (Message("user", "higher"),))
    message = turns.parse(given, sampled)
    """

    def __init__(self, chat: ChatTokenizer) -> None:
        self._chat = chat
        self._stops = {chat.show([one]): one for one in chat.stop_token_ids}
        self._has_tools = "tool_call" in chat.template
        self._has_thoughts = END_OF_THINK in chat.template

    def extend(self, last_token_id: int, messages: Sequence[Message]) -> tuple[int, ...]:
        """What `messages` become behind a sampled prefix that ends with `last_token_id`, with the opening of
        the next answer. The prefix is not looked at: where no stop token ended its turn, the template's
        comes first.

        Raises InputError as `extension.extend` does.
        """
        chat = self._chat
        found = extend(chat.with_suffix(messages), self._stops, chat.render)
        # Together, as such a token may take the white space behind it.
        end, *rest = chat.tokenize_text(found.end_of_turn + found.text)
        return tuple(rest) if last_token_id in self._stops.values() else (end, *rest)

    def parse(self, opening: Sequence[int], token_ids: Sequence[int], prefill: str = "") -> Message:
        """What the policy said with `token_ids`, behind the given tokens `opening` and `prefill`, which its
        answer begins with."""
        chat = self._chat
        reasoning, text = "", prefill + chat.detokenize(token_ids)
        calls: tuple[ToolCall, ...] = ()
        if self._has_thoughts:
            opened = chat.show(opening[-8:]).rstrip().endswith(THINK)
            reasoning, text = split_thoughts(text, opened)
        if self._has_tools:
            text, calls = parse_hermes(text)
        return Message("assistant", text, tool_calls=calls, reasoning=reasoning)


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
