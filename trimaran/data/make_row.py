"""A row of a source -> the columns that a run reads, or the reason why it is dropped."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from trimaran.data.files import read_named, shown
from trimaran.data.image_columns import has_video, image_columns, own_size
from trimaran.data.recipes import NUMBERED_PLACE, Draft, DroppedError, Recipe, read_row
from trimaran.data.row_parts import find
from trimaran.data.sources import SourceRow
from trimaran.data.templates import Template
from trimaran.errors import InputError
from trimaran.types import IMAGE_PLACE, MAX_PIXELS, Message

CountTokens = Callable[[Sequence[Message]], int]
"""Tokens of a prompt, rendered by the model's chat template."""


@dataclass(frozen=True, slots=True)
class PreparePlan:
    """What is to be made of each row.

    Example: PreparePlan(RECIPES["gsm8k"], TEMPLATES["gsm8k"])
    """

    recipe: Recipe
    template: Template
    system: str | None = None
    """The system message of every row, whatever it has."""
    thinking: bool | None = None
    """With it the chat template is asked for thinking or for none where tokens are counted; the file is the
    same."""
    mapped: tuple[str, ...] = ()
    """Columns of the recipe that were named by hand: some row has to have each."""
    keep: tuple[str, ...] = ()
    """Further columns that the file gets, as texts; none of recipe.columns."""
    unique: bool = False
    max_tokens: int | None = None
    """A longer prompt is dropped."""
    model: Path | None = None
    """Whose tokenizer counts."""
    min_pixels: int = 1
    max_pixels: int = MAX_PIXELS
    """Sizes with which an image's tokens are counted; the file gets the images as they are."""
    limit: int | None = None
    """Rows that are read, from the first one on."""
    hold_out: int = 0
    """Rows that are drawn for a second file."""
    seed: int = 1
    """Which ones."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Columns of the source that the file gets."""
        return (*self.recipe.keep, *self.keep)


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a row: columns, or the reason why it is dropped."""

    place: str
    columns: Mapping[str, Any] | None
    reason: str = ""
    tokens: int | None = None


def make_row(row: SourceRow, plan: PreparePlan, count: CountTokens | None) -> Made:
    """Pure but for images that lie in files of their own. Raises InputError for a row whose text marks images
    that no field of the recipe reads: so it is with all rows like it."""
    try:
        draft = read_row(row.values, plan.recipe)
        _check_read(row, draft, plan.recipe)
        images = [_embed(image, row.folder) for image in draft.images]
        columns = _columns(draft, images, plan)
        messages = [Message(one["role"], one["content"]) for one in columns["prompt"]]
        _check_unicode(message.text for message in messages)  # before they are counted
        tokens = count and count(messages) + _image_tokens(images, plan)
        kept = {name: _as_text(find(row.values, name)) for name in plan.kept}
        _check_unicode([columns["answer"], *kept.values()])
        if plan.max_tokens is not None and tokens is not None and tokens > plan.max_tokens:
            raise DroppedError(f"a prompt of more than {plan.max_tokens} tokens")
    except DroppedError as dropped:
        return Made(row.place, None, str(dropped))
    return Made(row.place, {**columns, **kept}, tokens=tokens)


def _check_read(row: SourceRow, draft: Draft, recipe: Recipe) -> None:
    if any(has_video(row.values, text) for _, text in draft.messages):
        raise DroppedError("a video, which no model here takes")
    is_text = "images" in recipe.keys and not recipe.keys["images"]  # by --map images=
    if draft.images or is_text or not any(_is_marked(text) for _, text in draft.messages):
        return
    read = [path for paths in recipe.keys.values() for path in paths]
    if found := image_columns(row.values, {*read, *(path.partition(".")[0] for path in read)}):
        raise InputError(
            f"{row.place}: its text marks an image, and no field reads the images in"
            f" {' and '.join(map(repr, found))}; give --map images={found[0]}, or --map images= where the mark"
            " is meant as text"
        )


def _check_unicode(texts: Iterable[str | None]) -> None:
    """Raises DroppedError for what no file can hold."""
    try:
        for text in texts:
            (text or "").encode()
    except UnicodeEncodeError:
        raise DroppedError("half of a surrogate pair, which is no text") from None


def _is_marked(text: str) -> bool:
    return IMAGE_PLACE in text or NUMBERED_PLACE.search(text) is not None


def _columns(draft: Draft, images: list[dict[str, Any]], plan: PreparePlan) -> dict[str, Any]:
    *before, (role, text) = draft.messages
    messages = [*before, (role, plan.template.apply(text))]
    system = plan.system
    if system is None and not any(role == "system" for role, _ in before):
        system = plan.template.system
    if system is not None:
        messages = [("system", system), *(one for one in messages if one[0] != "system")]
    num_places = sum(text.count(IMAGE_PLACE) for _, text in messages)
    if images and num_places not in (0, len(images)):
        raise DroppedError(f"other than one {IMAGE_PLACE} an image")
    if not images and num_places and plan.recipe.keys.get("images"):
        raise DroppedError(f"{IMAGE_PLACE} without an image (--map images= where it is text)")
    columns: dict[str, Any] = {
        "prompt": [{"role": role, "content": text} for role, text in messages],
        "answer": draft.answer,
    }
    if plan.recipe.data_source:
        columns["data_source"] = plan.recipe.data_source
    return columns | ({"images": images} if plan.recipe.keys.get("images") else {})


def _embed(image: Any, folder: Path | None) -> dict[str, Any]:
    """{"bytes", "path"}, decoded once to see that it can be. Raises DroppedError."""
    from trimaran.data.images.prepare import open_image

    data, name = image, ""
    if size := own_size(image):
        raise DroppedError(
            f"an image with {size} of its own, where data.min_pixels and data.max_pixels of the run are for all"
        )
    if isinstance(image, dict):
        data, name = (cast(dict[str, Any], image).get(key) for key in ("bytes", "path"))
    elif isinstance(image, str):
        data, name = None, image
    try:
        if data is None and isinstance(name, str) and name and folder is not None:
            data = read_named(folder, name)
        if not isinstance(data, bytes):
            raise DroppedError("an image that is neither bytes nor a file")
        open_image(data)
    except InputError as error:
        raise DroppedError(f"an image: {error}") from None
    return {"bytes": data, "path": shown(str(name or ""))}


def _image_tokens(images: Sequence[Mapping[str, Any]], plan: PreparePlan) -> int:
    """Places among the tokens, but for the one of each that its mark in the text stands for."""
    if not images or plan.model is None:
        return 0
    from trimaran.data.images.prepare import fit_size, image_multiple, open_image

    multiple, total = image_multiple(plan.model), 0
    for image in images:
        width, height = open_image(image["bytes"]).size
        sides = fit_size(height, width, plan.min_pixels, plan.max_pixels, multiple)
        total += sides[0] * sides[1] // multiple**2 - 1
    return total


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
