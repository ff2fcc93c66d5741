"""Parts of a row: the value at a dotted path, and the text of a message whose content is a list of parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from trimaran.types import IMAGE_PLACE


class UnusablePartError(ValueError):
    """A part of a message that no prompt can be made of; the text says which."""


def find(values: Any, path: str) -> Any:
    """The value at `a.0.b`; a column whose own name has dots goes before. None where there is none."""
    if isinstance(values, Mapping) and path in cast(Mapping[str, Any], values):
        return cast(Mapping[str, Any], values)[path]
    for part in path.split("."):
        if isinstance(values, Mapping):
            values = cast(Mapping[str, Any], values).get(part)
        elif isinstance(values, list) and part.isdigit() and int(part) < len(cast(Any, values)):
            values = cast(list[Any], values)[int(part)]
        else:
            return None
    return cast(Any, values)


def text_of(content: str | list[Any]) -> str:
    """A message's content: a text, or parts as OpenAI's API and TRL have them. Texts follow one another, and
    an image is the place of the row's next image. Raises UnusablePartError.

    Example: text_of([{"type": "image"}, {"type": "text", "text": "How many?"}]) == "<image>How many?"
    """
    return content if isinstance(content, str) else "".join(map(_part, content))


def _part(item: Any) -> str:
    part = cast(dict[str, Any], item) if isinstance(item, dict) else {}
    given = {name for name, value in part.items() if value is not None}
    if part.get("type") == "text" and isinstance(part.get("text"), str):
        return part["text"]
    if part.get("type") == "image" and given == {"type"}:
        return IMAGE_PLACE
    raise UnusablePartError(
        f"a part of the type {part.get('type')!r} with {', '.join(sorted(given - {'type'})) or 'nothing'};"
        ' parts are {"type": "text", "text": …} and {"type": "image"}, whose image is the next in the row\'s'
        " column of images"
    )


def column_value(text: str) -> Any:
    """What stood in a column: the value, where `text` is what the dataset's reader writes for one; else the text.

    Example: column_value("[1, 2]") == [1, 2] and column_value("[1,2]") == "[1,2]"
    """
    try:
        value: object = json.loads(text, parse_constant=_refuse)
        same = json.dumps(value, ensure_ascii=False) == text
    except (ValueError, RecursionError):
        return text
    return value if same and not isinstance(value, str) else text


def _refuse(text: str) -> Any:
    raise ValueError(text)
