"""Messages -> prompt tokens by the model's chat template, and tokens -> text."""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from services.rollout.template_form import message_form, tool_form
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.types import Message, Tool, ToolCall, split_prefill

NO_THINKING = " /no_think"
"""Qwen3's switch in a user's message: the answer begins with an empty <think></think>."""
THINK = "<think>"
"""Some templates begin the answer with it."""
GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""What transformers adds to Jinja: around what the assistant says."""


class ChatTokenizer:
    """Example: ChatTokenizer(Path("models/tiny")).tokenize((Message("user", "1 + 2?"),))"""

    def __init__(
        self,
        folder: Path,
        takes_images: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`folder`: a Hugging Face folder. Reads no network. `takes_images`: of the engine.
        `template_kwargs`: as `data.chat_template_kwargs` has them.

        Raises InputError for a folder without tokenizer, and for options that its template does not know, but
        for `enable_thinking: false`, which is then said in the text.
        """
        self._takes_images = takes_images
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # whatever the tokenizer's own code stumbles over
            raise InputError(
                f"model.path: {folder} holds no tokenizer that transformers can load"
                f" ({type(error).__name__}: {error}); is the download complete?"
            ) from None
        self.stop_token_ids = frozenset(_stop_token_ids(folder, self.tokenizer.eos_token_id))
        self._kwargs = _known(self.tokenizer, template_kwargs or {})
        self._suffix = "" if len(self._kwargs) == len(template_kwargs or {}) else NO_THINKING

    @classmethod
    def of(cls, config: RunConfig, takes_images: bool = False) -> ChatTokenizer:
        """As every engine of the run has it, and every process that counts a prompt's tokens for it."""
        return cls(config.model.path, takes_images, config.data.chat_template_kwargs)

    def describe_options(self) -> str:
        """How the prompt is rendered besides, for people; nothing without options."""
        reported = [
            f"{key}={value!r} is given to the chat template" for key, value in self._kwargs.items()
        ]
        if self._suffix:
            reported.append(
                f"the chat template does not know enable_thinking, so{self._suffix} stands behind the last"
                " message of the user"
            )
        return "; ".join(reported)

    @property
    def template(self) -> str:
        """The source of its chat template; "" for a model without one."""
        return self.tokenizer.get_chat_template() if self.tokenizer.chat_template else ""

    @property
    def special_tokens(self) -> list[str]:
        """Those that only a template writes."""
        added = self.tokenizer.added_tokens_decoder.values()
        return [token.content for token in added if token.special]

    def tokenize(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """A model without a chat template gets the texts, one after the other. Where the last message is the
        assistant's, its text follows what the template writes before an answer, character for character.

        Images become what the template makes of them, one image token each. Raises InputError where
        images and their places in the text do not match, or the template cannot take the messages.
        """
        if any(message.images for message in messages) and not self._takes_images:
            raise InputError("this engine takes no images; choose rollout.engine=vllm")
        if self.tokenizer.chat_template is None:
            text = "\n".join(message.text for message in messages)
            return tuple(self.tokenizer(text).input_ids)
        turns, prefill = split_prefill(messages)
        text = self.render(self.with_suffix(turns), tools)
        if text.rstrip().endswith(THINK) and prefill.startswith(THINK):
            text = text.rstrip().removesuffix(THINK)
        return self.tokenize_text(text + prefill)

    def with_suffix(self, messages: Sequence[Message]) -> Sequence[Message]:
        """With what stands behind the last message of the user (`describe_options`)."""
        last = next((n for n in reversed(range(len(messages))) if messages[n].role == "user"), None)
        if not self._suffix or last is None:
            return messages
        changed = replace(messages[last], text=messages[last].text + self._suffix)
        return [*messages[:last], changed, *messages[last + 1 :]]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), opens_answer: bool = True
    ) -> str:
        """By the model's chat template, which there must be. Raises InputError where it cannot take them."""
        has_calls = any(one.tool_calls for one in messages)
        takes_text = has_calls and self._takes_text
        return self._apply([message_form(one, takes_text) for one in messages], tools, opens_answer)

    def _apply(
        self, messages: list[dict[str, Any]], tools: Sequence[Tool], opens_answer: bool
    ) -> str:
        given = {"tools": [tool_form(one) for one in tools]} if tools else {}
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                add_generation_prompt=opens_answer,
                tokenize=False,
                **given,
                **self._kwargs,
            )
        except Exception as error:  # whatever the template stumbles over
            raise InputError(
                f"the model's chat template cannot take it ({type(error).__name__}: {error}); a prompt"
                " with images needs one that takes a list of parts"
            ) from None

    @cached_property
    def _takes_text(self) -> bool:
        """Whether the chat template takes a call's arguments as text, and as nothing else."""
        call = ToolCall("probe", '{"a": "b"}', "call00000")
        messages = [Message("user", "?"), Message("assistant", "", tool_calls=(call,))]
        try:
            self._apply([message_form(one) for one in messages], (), opens_answer=False)
        except InputError:
            return True
        return False

    def tokenize_text(self, text: str) -> tuple[int, ...]:
        """Of what a chat template has rendered, which brings its own special tokens."""
        return tuple(self.tokenizer(text, add_special_tokens=False).input_ids)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def show(self, token_ids: Sequence[int]) -> str:
        """The text with its special tokens, for people."""
        return self.tokenizer.decode(list(token_ids), skip_special_tokens=False)


def _known(tokenizer: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those that the model's chat template names. Raises InputError for others, but for
    `enable_thinking: false`."""
    if not kwargs:
        return {}
    if tokenizer.chat_template is None:
        raise InputError(
            "data.chat_template_kwargs: the model has no chat template; leave them out, or write one into its"
            " folder"
        )
    taken = {*inspect.signature(tokenizer.apply_chat_template).parameters, "messages"}
    asked = _asked(tokenizer.get_chat_template()) - taken
    known = {key: value for key, value in kwargs.items() if key in asked}
    for key in kwargs.keys() - known.keys():
        if key != "enable_thinking" or kwargs[key] is not False:
            raise InputError(
                f"data.chat_template_kwargs.{key}: is no option of the model's chat template, which does not"
                " ask for it; leave it out"
            )
    return known


def _asked(template: str) -> set[str]:
    """The names that a chat template takes from its renderer. Raises InputError for one that is broken."""
    import jinja2.meta
    from jinja2.ext import loopcontrols

    plain = GENERATION.sub("", template)
    try:
        tree = jinja2.Environment(extensions=[loopcontrols]).parse(plain)
    except jinja2.TemplateError as error:
        raise InputError(
            f"model.path: its chat template is broken ({error}); is the download complete?"
        ) from None
    return jinja2.meta.find_undeclared_variables(tree)


def _stop_token_ids(folder: Path, tokenizer_eos: int | None) -> set[int]:
    """What ends a completion: as generation_config.json says, else config.json; and the tokenizer."""
    found = set() if tokenizer_eos is None else {tokenizer_eos}
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        named = json.loads(path.read_text("utf-8")).get("eos_token_id") if path.is_file() else None
        if named is not None:
            return found | set(named if isinstance(named, list) else [named])
    return found
