"""A dataset's row -> a prompt with its images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from trimaran.config import DataSection, DatasetSection, RolloutSection, RowSection
from trimaran.data.files import check_name, read_named, shown
from trimaran.data.image_columns import (
    VIDEO_PLACE,
    check_text_alone,
    has_video,
    own_size,
)
from trimaran.data.messages import has_parts, read_messages, read_tools
from trimaran.data.row_parts import find
from trimaran.data.rows import Rows, open_rows
from trimaran.errors import InputError
from trimaran.types import IMAGE_PLACE, Message, Prompt

OWN_ANSWER = RowSection.model_fields["answer_key"].default
VERL_ANSWER = "reward_model.ground_truth"
"""Where verl's files hold the answer."""
TOOLS = "tools"
"""The column of the tools that the chat template shows, as in TRL."""


class UnusableImageError(InputError):
    """A row whose image cannot be prepared: its prompt is skipped, as one that is too long."""

    def __init__(self, text: str, prompt: Prompt) -> None:
        super().__init__(text)
        self.prompt = prompt
        """Without its images."""


@dataclass(frozen=True, slots=True)
class ImageSizes:
    """To which images are prepared; see `trimaran.data.images.prepare`."""

    min_pixels: int
    max_pixels: int
    multiple: int

    @classmethod
    def of(cls, data: DataSection, model_folder: Path) -> ImageSizes | None:
        """None where neither a dataset has images nor the model takes any, by a config.json that is here.
        Raises InputError where the datasets have images and the model takes none."""
        from trimaran.data.images.processor import takes_images

        if not data.has_images and not takes_images(model_folder):
            return None
        from trimaran.data.images.prepare import image_multiple

        return cls(data.min_pixels, data.max_pixels, image_multiple(model_folder))

    @property
    def least_tokens(self) -> int:
        """The fewest tokens of an image, whatever its size."""
        return -(-self.min_pixels // self.multiple**2)


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """The bounds of the images of one prompt. Example: ImageLimits.of(config.rollout).images"""

    images: int
    tokens: int
    """Tokens of the whole prompt, of which these take a part."""

    @classmethod
    def of(cls, rollout: RolloutSection) -> ImageLimits:
        return cls(rollout.limit_images, rollout.max_prompt_tokens)

    def check_number(self, place: str, count: int) -> None:
        """Raises InputError that begins with `place`."""
        if count > self.images:
            raise InputError(f"{place}: {count} images; rollout.limit_images is {self.images}")

    def check_tokens(self, place: str, count: int, tokens: int) -> None:
        """`tokens`: of these images together, at least. Raises InputError that begins with `place`."""
        if tokens > self.tokens:
            raise InputError(
                f"{place}: its {count} images take {tokens} tokens, and rollout.max_prompt_tokens is"
                f" {self.tokens}; raise that, or lower data.max_pixels and data.min_pixels"
            )


@dataclass(frozen=True, slots=True)
class _Image:
    """As a row has it: its bytes, or where they lie."""

    data: bytes | None
    path: str = ""

    def check(self) -> None:
        """Opens nothing. Raises InputError."""
        if self.data is None:
            check_name(self.path)

    def read(self, folder: Path) -> bytes:
        """Raises InputError."""
        return self.data if self.data is not None else read_named(folder, self.path)


@dataclass(frozen=True)
class Dataset:
    """The prompts of one file. Each is read, and its images are prepared, when it is asked for.

    Example:
        dataset = Dataset(config.data.train[0], sizes=None)
        dataset[0].messages[-1].text  # "What is 0 + 0?"
    """

    section: DatasetSection
    sizes: ImageSizes | None = None
    """None: of a model that takes no images, or where they are not looked at."""
    name: str = ""
    """In prompt ids; the file's own where it is empty."""
    limits: ImageLimits | None = None
    """A row with more is refused."""

    @cached_property
    def rows(self) -> Rows:
        """Raises InputError when the file is missing or empty."""
        return open_rows(self.section.path)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Prompt:
        """Raises InputError that names the row, and UnusableImageError."""
        line, row = self.rows[place]
        return self._load(line, *self._read(line, row))

    def texts(self) -> Iterator[Prompt]:
        """All prompts in the order of the file, with none of their images: what can be checked quickly.

        Raises InputError at the first row that is wrong.
        """
        for line, row in self.rows:
            prompt, images = self._read(line, row)
            self._check_unopened(line, images)
            for number, image in enumerate(images, 1):
                try:
                    image.check()
                except InputError as error:
                    raise InputError(self._about(line, number, image, error)) from None
            yield prompt

    def entries(self) -> Iterator[Prompt | InputError]:
        """The same with their images; a row that is wrong, or cannot be read, as its error."""
        for place in range(len(self)):
            try:
                yield self[place]
            except InputError as error:
                yield error

    def _read(self, line: int, row: Any) -> tuple[Prompt, tuple[_Image, ...]]:
        place, section = f"{self.section.path}:{line}", self.section
        prompt_value, answer, task, image_value = _values(place, row, section)
        used = (section.prompt_key, section.answer_key, section.image_key, TOOLS)
        images = _images(place, image_value)
        messages = read_messages(place, prompt_value, section)
        if any(has_video(row, message.text) for message in messages):
            raise InputError(
                f"{place}: {VIDEO_PLACE} marks a video, and no model here takes any; leave the row out"
            )
        if section.image_key is not None:
            messages = _with_places(place, messages, len(images))
        elif any(IMAGE_PLACE in message.text for message in messages):
            is_mark = self.sizes is not None or has_parts(prompt_value)
            check_text_alone(place, row, used, is_mark)
        prompt = Prompt(
            prompt_id=f"{self.name or section.path.name}:{line}",
            messages=messages,
            task=task,
            answer=_text(answer),
            extras={
                key: _text(value)
                for key, value in row.items()
                if key not in used and value is not None and not _holds_bytes(value)
            },
            tools=read_tools(place, row.get(TOOLS)) if section.prompt_key != TOOLS else (),
        )
        return prompt, images

    def _load(self, line: int, prompt: Prompt, images: tuple[_Image, ...]) -> Prompt:
        if not images or self.sizes is None:
            return prompt
        try:
            self._check_unopened(line, images)
            prepared = [self._prepare(line, *one) for one in enumerate(images, 1)]
            self._check_prepared(line, prepared)
        except InputError as error:
            raise UnusableImageError(str(error), prompt) from None
        return replace(prompt, messages=give_images(prompt.messages, prepared))

    def _check_unopened(self, line: int, images: tuple[_Image, ...]) -> None:
        if self.limits is None:
            return
        place, count = f"{self.section.path}:{line}", len(images)
        self.limits.check_number(place, count)
        if self.sizes:
            self.limits.check_tokens(place, count, count * self.sizes.least_tokens)

    def _check_prepared(self, line: int, images: Sequence[bytes]) -> None:
        from trimaran.data.images.prepare import num_tokens

        assert self.sizes
        if self.limits:
            tokens = sum(num_tokens(image, self.sizes.multiple) for image in images)
            self.limits.check_tokens(f"{self.section.path}:{line}", len(images), tokens)

    def _about(self, line: int, number: int, image: _Image, error: InputError) -> str:
        where = f"image {number}" + (f" ({shown(image.path)})" if image.path else "")
        return f"{self.section.path}:{line}: {where}: {error}"

    def _prepare(self, line: int, number: int, image: _Image) -> bytes:
        from trimaran.data.images.prepare import prepare_image

        sizes = self.sizes
        assert sizes
        try:
            data = image.read(self.section.path.parent)
            return prepare_image(data, sizes.min_pixels, sizes.max_pixels, sizes.multiple)
        except InputError as error:
            raise InputError(self._about(line, number, image, error)) from None


def open_datasets(
    sections: Sequence[DatasetSection],
    sizes: ImageSizes | None,
    limits: ImageLimits | None = None,
) -> tuple[Dataset, ...]:
    """Prompt ids begin with the files' names, or with their paths where two have one name.

    Raises InputError where a file is missing, empty or none of its format.
    """
    names = [section.path.name for section in sections]
    paths = {section.path for section in sections}
    is_clear = len(paths) == len({path.name for path in paths})
    datasets = tuple(
        Dataset(section, sizes, name if is_clear else str(section.path), limits)
        for section, name in zip(sections, names, strict=True)
    )
    for dataset in datasets:
        len(dataset)  # opens it
    return datasets


def without_images(prompt: Prompt) -> Prompt:
    return replace(prompt, messages=tuple(replace(one, images=()) for one in prompt.messages))


def _values(place: str, row: Any, section: DatasetSection) -> tuple[Any, Any, str, Any]:
    """The values of the prompt, the answer, the task and the images: None where no key names images."""
    if not isinstance(row, dict):
        raise InputError(f"{place}: a row must be an object with {section.prompt_key!r}")
    row = cast(dict[str, Any], row)
    prompt = _value(place, row, section.prompt_key, "prompt_key")
    answer_key = section.answer_key
    is_default = answer_key == OWN_ANSWER
    if is_default and answer_key not in row and find(row, VERL_ANSWER) is not None:
        answer_key = VERL_ANSWER
    answer = _value(place, row, answer_key, "answer_key")
    task = section.task
    if section.task_key is not None:
        task = _text(_value(place, row, section.task_key, "task_key"))
    images = None
    if section.image_key is not None:
        images = find(row, section.image_key)
        if images is None and section.image_key.partition(".")[0] not in row:
            raise InputError(_missing(place, section.image_key, "image_key", row))
    values = ((key, value) for key, value in row.items() if key != section.image_key)
    values = ((key, value) for key, value in values if not _holds_bytes(value))
    if bad := next((key for key, value in values if not _is_unicode(_text(value))), None):
        raise InputError(f"{place}: {bad!r} holds half of a surrogate pair, which is no text")
    return prompt, answer, task, images


def _value(place: str, row: Mapping[str, Any], key: str, setting: str) -> Any:
    if (found := find(row, key)) is None:
        raise InputError(_missing(place, key, setting, row))
    return found


def _missing(place: str, key: str, setting: str, row: Mapping[str, Any]) -> str:
    keys = ", ".join(map(repr, row)) or "no keys"
    return f"{place}: no {key!r}; the row has {keys} (data.{setting} names the column)"


def _images(place: str, value: Any) -> tuple[_Image, ...]:
    items = cast(list[Any], value) if isinstance(value, list) else [value]
    return tuple(_image(place, item) for item in items if item is not None)


def _image(place: str, value: Any) -> _Image:
    if isinstance(value, bytes):
        return _Image(value)
    if isinstance(value, str) and value:
        return _Image(None, value)
    if size := own_size(value):
        raise InputError(
            f"{place}: an image has {size} of its own, which would have no effect: the bounds of all images"
            " are data.min_pixels and data.max_pixels; leave the key out of the rows"
        )
    if isinstance(value, dict):
        data, path = (cast(dict[str, Any], value).get(key) for key in ("bytes", "path"))
        if isinstance(data, bytes):
            return _Image(data, path if isinstance(path, str) else "")
        if isinstance(path, str) and path:
            return _Image(None, path)
    raise InputError(
        f"{place}: an image is bytes, a path or {{bytes, path}}, not {type(cast(Any, value)).__name__}"
        " (data.image_key names the column)"
    )


def _with_places(place: str, messages: tuple[Message, ...], num_images: int) -> tuple[Message, ...]:
    """With one IMAGE_PLACE an image. Where a row's texts have none at all, its images come first in its
    first user message."""
    num_places = sum(message.text.count(IMAGE_PLACE) for message in messages)
    if num_images == num_places:
        return messages
    first = next((i for i, message in enumerate(messages) if message.role == "user"), None)
    if num_places or first is None:
        raise InputError(
            f"{place}: {num_images} images, and {IMAGE_PLACE} stands {num_places} times in the prompt;"
            " each image needs one, or leave all out to have the images first"
        )
    text = IMAGE_PLACE * num_images + messages[first].text
    return (*messages[:first], replace(messages[first], text=text), *messages[first + 1 :])


def give_images(messages: Sequence[Message], images: Sequence[bytes]) -> tuple[Message, ...]:
    """Each message the images whose places stand in it."""
    given: list[Message] = []
    start = 0
    for message in messages:
        end = start + message.text.count(IMAGE_PLACE)
        given.append(replace(message, images=tuple(images[start:end])))
        start = end
    return tuple(given)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _holds_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_bytes, cast(dict[str, Any], value).values()))
    if isinstance(value, list):
        return any(map(_holds_bytes, cast(list[Any], value)))
    return isinstance(value, bytes)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
