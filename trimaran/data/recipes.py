"""Which columns of a known dataset are what, and a row of it -> messages, answer and images."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from trimaran.data.row_parts import UnusablePartError, find, text_of
from trimaran.errors import InputError
from trimaran.types import IMAGE_PLACE

NUMBERED_PLACE = re.compile(r"<image\s?(\d+)>")
ROLES = {
    **{name: name for name in ("system", "user", "assistant", "tool")},
    **{"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"},
}
"""As conversations have them -> as chat templates have them."""
TURN = "a turn"


class DroppedError(Exception):
    """A row that no prompt can be made of; the text is the reason, the same for all such rows."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a dataset is read."""

    keys: Mapping[str, Sequence[str]]
    """Field -> columns, the first that the row has counts. `a.0.b` is key b of the first item of column a.

    Fields: prompt, query (further input), response, system, history (of an instruction); messages (of a
    conversation); images."""
    template: str = "chat"
    data_source: str = ""
    """As verl calls the dataset; its reward functions look at it."""
    answer_after: str = ""
    """The answer is what follows the last of these marks."""
    unique: bool = False
    """Rows with the same prompt and answer are repetitions."""
    keep: tuple[str, ...] = ()
    """Further columns that the file gets where the source has them."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the file that is made, without those that are kept."""
        source = ("data_source",) if self.data_source else ()
        images = ("images",) if self.keys.get("images") else ()
        return ("prompt", "answer", *source, *images)


@dataclass(frozen=True, slots=True)
class Draft:
    """A row that was read, before its template."""

    messages: tuple[tuple[str, str], ...]
    """(role, text); the last one is what the template is put around."""
    answer: str
    images: tuple[Any, ...] = field(default=())
    """As the row has them."""


INSTRUCTION = {
    "prompt": ["instruction"],
    "query": ["input"],
    "response": ["output"],
    "system": ["system"],
    "history": ["history"],
    "images": ["images", "image"],
}
PROBLEM = {"prompt": ["problem", "question"], "response": ["answer", "solution"]}

RECIPES = {
    "gsm8k": Recipe(
        {"prompt": ["question"], "response": ["answer"]},
        *("gsm8k", "openai/gsm8k"),
        answer_after="####",
    ),
    "math": Recipe(PROBLEM, "boxed", "lighteval/MATH"),
    "math-17k": Recipe(
        {"prompt": ["prompt.0.content", "prompt"], "response": ["reward_model.ground_truth"]},
        *("chat", "math_dapo"),
        unique=True,
    ),
    "deepscaler": Recipe(PROBLEM, "qwen_r1"),
    "geo3k": Recipe(
        {**PROBLEM, "images": ["images", "image"]}, "think_boxed", "hiyouga/geometry3k"
    ),
    "alpaca": Recipe(INSTRUCTION),
    "sharegpt": Recipe({"messages": ["conversations"], "response": [], "system": ["system"]}),
    "chat": Recipe(
        {
            "messages": ["messages", "prompt"],
            "response": ["answer", "reward_model.ground_truth"],
            "images": ["images", "image"],
        },
        keep=("data_source",),  # verl's rewards go by it
    ),
}


def read_row(values: Mapping[str, Any], recipe: Recipe) -> Draft:
    """Raises DroppedError where the prompt or the answer is missing."""
    images = _field(values, recipe, "images")
    items = cast(list[Any], images) if isinstance(images, list) else [images]
    pictures = tuple(item for item in items if item is not None)
    answer = _answer(_field(values, recipe, "response"))
    if "messages" in recipe.keys:
        messages, last = _conversation(_field(values, recipe, "messages"))
        answer = answer or last
    else:
        messages = _instruction(values, recipe)
    if system := _text(_field(values, recipe, "system"), "a system message"):
        messages = [("system", system), *(one for one in messages if one[0] != "system")]
    if recipe.answer_after:
        answer = answer.rpartition(recipe.answer_after)[2].strip().replace(",", "")
    if not messages or not messages[-1][1].strip():
        raise DroppedError("no prompt")
    if not answer.strip():
        raise DroppedError("no answer")
    if pictures:
        messages = [(role, _with_places(text, len(pictures))) for role, text in messages]
    return Draft(tuple(messages), answer.strip(), pictures)


def mapped(recipe: Recipe, given: Sequence[str]) -> dict[str, Sequence[str]]:
    """The recipe's keys with those of "field=column" words. Raises InputError."""
    fields = dict.fromkeys([*recipe.keys, *INSTRUCTION])
    if "messages" in recipe.keys:
        fields = dict.fromkeys(["messages", "response", "system", "images"])
    keys = dict(recipe.keys)
    for word in given:
        name, equals, column = word.partition("=")
        if not equals or name not in fields:
            raise InputError(f"--map {word}: give field=column, a field of {', '.join(fields)}")
        keys[name] = [column] if column else []
    return keys


def _with_places(text: str, num_images: int) -> str:
    """Numbered marks that have an image become IMAGE_PLACE. A further one names a part of the
    last image, and becomes words."""

    def place(mark: re.Match[str]) -> str:
        return IMAGE_PLACE if int(mark[1]) <= num_images else f"(image {mark[1]})"

    return NUMBERED_PLACE.sub(place, text)


def _instruction(values: Mapping[str, Any], recipe: Recipe) -> list[tuple[str, str]]:
    parts = [_text(_field(values, recipe, name), "a prompt") for name in ("prompt", "query")]
    messages: list[tuple[str, str]] = []
    for pair in _items(_field(values, recipe, "history")):
        if not isinstance(pair, list) or len(cast(list[Any], pair)) != 2:
            raise DroppedError("a history of what is no question with its answer")
        question, answer = cast(list[Any], pair)
        messages += [("user", _text(question, TURN)), ("assistant", _text(answer, TURN))]
    return [*messages, ("user", "\n".join(part for part in parts if part))]


def _conversation(value: Any) -> tuple[list[tuple[str, str]], str]:
    """The turns up to the last question, and the answer behind it; empty where there is none."""
    if isinstance(value, str):
        return [("user", value)], ""
    turns = [_turn(item) for item in _items(value)]
    if turns and turns[-1][0] == "assistant":
        return turns[:-1], turns[-1][1]
    return turns, ""


def _items(value: Any) -> list[Any]:
    """None where the row has none; NaN is how pandas writes that."""
    if not value or (isinstance(value, float) and math.isnan(value)):
        return []
    if not isinstance(value, list):
        raise DroppedError("turns that are no list")
    return cast(list[Any], value)


def _turn(item: Any) -> tuple[str, str]:
    if not isinstance(item, dict):
        raise DroppedError("a turn that is no object")
    turn = cast(dict[str, Any], item)
    role = ROLES.get(str(turn.get("role", turn.get("from"))))
    if role is None:
        raise DroppedError("a turn of an unknown role")
    if turn.get("tool_calls"):
        raise DroppedError("a turn that calls a tool, which no run here does")
    return role, _content(turn.get("content", turn.get("value")))


def _content(value: Any) -> str:
    """An image without one of its own is the place of the next image of the row."""
    if not isinstance(value, list):
        return _text(value, TURN)
    try:
        return text_of(cast(list[Any], value))
    except UnusablePartError as error:
        raise DroppedError(f"a turn with {error}") from None


def _field(values: Mapping[str, Any], recipe: Recipe, name: str) -> Any:
    """None where the row has none of the columns."""
    for path in recipe.keys.get(name, ()):
        if (found := find(values, path)) is not None:
            return found
    return None


def _answer(value: Any) -> str:
    """Several values as JSON, as reward rules get them of a run's file."""
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False, default=str)
    return _text(value, "an answer")


def _text(value: Any, what: str) -> str:
    """A number without a fraction as an integer: some datasets have 142.0 where 142 is meant. NaN is how
    pandas writes that a number is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, list | dict | bytes):
        raise DroppedError(f"{what} that is no text")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else str(value)
