"""Messages of an episode -> given tokens, and sampled tokens -> a message of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from services.rollout.turns.extension import REMEDY, Ends, extend
from services.rollout.turns.parsing import parse
from services.rollout.turns.template_facts import TemplateFacts, read_facts
from services.rollout.turns.tool_formats import Parser, find_format, load_parser
from trimaran.config import EnvironmentSection, RunConfig
from trimaran.errors import InputError
from trimaran.types import Message, Tool

if TYPE_CHECKING:
    from services.rollout.chat import ChatTokenizer


class TurnTokenizer:
    """Example:
    turns = TurnTokenizer(chat)
    given = turns.extend(prefix[-1], (Message("user", "higher"),))
    message = turns.parse(given, sampled)
    """

    def __init__(self, chat: ChatTokenizer, tool_format: str = "auto") -> None:
        """`tool_format`: as `environment.tool_format`."""
        self._chat = chat
        self.tool_format = find_format(chat.template) if tool_format == "auto" else tool_format
        self._ends = Ends([chat.show([one]) for one in chat.stop_token_ids], chat.special_tokens)

    @classmethod
    def of(cls, config: RunConfig, chat: ChatTokenizer) -> TurnTokenizer:
        return cls(chat, config.environment.tool_format if config.environment else "auto")

    @cached_property
    def facts(self) -> TemplateFacts:
        return read_facts(self._chat.render, self._ends)

    @cached_property
    def _parser(self) -> Parser | None:
        return load_parser(self.tool_format, self._chat.tokenizer) if self.tool_format else None

    def check(self, environment: EnvironmentSection) -> str:
        """What holds of the model's chat template, in a line. Raises InputError where it cannot do what the
        environment needs."""
        if not self._chat.template:
            raise InputError(
                "environment: the model has no chat template, by which its messages become tokens; write one"
                " into its folder"
            )
        facts = self.facts
        if environment.history == "exact":
            why = facts.why_no_result if environment.kind == "tools" else facts.why_no_user
            if why:
                raise InputError(f"environment.history is exact: {why}; {REMEDY}")
        if environment.kind == "tools" and not facts.shows_tools:
            raise InputError(
                "environment.tools: the model's chat template shows no tools, so the policy never hears of"
                " them; use another template, or a class (environment.factory) whose messages say how to call"
            )
        if environment.kind == "tools" and self._parser is None:
            raise InputError(
                "environment.tool_format: it is unknown how the model's chat template asks for calls; name one"
                " of vllm's parsers, or hermes"
            )
        calls = f"calls are read as {self.tool_format}" if self.tool_format else "no calls are read"
        return f"{facts.describe()}; {calls}"

    def extend(self, last_token_id: int, messages: Sequence[Message]) -> tuple[int, ...]:
        """What `messages` become behind a sampled prefix that ends with `last_token_id`, with the opening of
        the next answer. The prefix is not looked at: where its turn ended otherwise than the template ends
        one, the template's end comes first.

        Raises InputError as `extension.extend` does.
        """
        chat = self._chat
        found = extend(chat.with_suffix(messages), self._ends, chat.render)
        # Together, as such a token may take the white space behind it.
        end, *rest = chat.tokenize_text(found.end_of_turn + found.text)
        stops = chat.stop_token_ids
        has_ended = last_token_id == end or (last_token_id in stops and end not in stops)
        return tuple(rest) if has_ended else (end, *rest)

    def parse(
        self,
        opening: Sequence[int],
        token_ids: Sequence[int],
        prefill: str = "",
        tools: Sequence[Tool] = (),
    ) -> Message:
        """What the policy said with `token_ids`, behind the given tokens `opening` and `prefill`, which its
        answer begins with."""
        return parse(self._chat, self._parser, opening, token_ids, prefill, tools)
