"""Columns of a row that hold images, whether or not a key names them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from trimaran.errors import InputError
from trimaran.types import IMAGE_PLACE

VIDEO_PLACE, VIDEO_COLUMNS = "<video>", ("videos", "video")
"""As verl and EasyR1 have them."""
OWN_SIZES = ("min_pixels", "max_pixels", "resized_height", "resized_width")
"""Keys beside an image's own, of which qwen-vl-utils makes its size."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def image_columns(row: Mapping[str, Any], named: Collection[str | None]) -> list[str]:
    """Those beside the `named` ones with an image, or a list of images: bytes, {"bytes", "path"}, or the path
    of a file that is called like one.

    Example: image_columns({"prompt": "a", "picture": "1.png"}, ["prompt"]) == ["picture"]
    """
    return [name for name, value in row.items() if name not in named and _has_image(value)]


def check_text_alone(
    place: str, row: Mapping[str, Any], named: Collection[str | None], is_mark: bool
) -> None:
    """Checks a row whose text has IMAGE_PLACE, where no key names images. It is text where the row has no image,
    the model takes none, and it is no part of a message (else `is_mark`). Raises InputError where it must be a
    mark."""
    stands = f"{place}: {IMAGE_PLACE} stands in its text, and no key names"
    if found := image_columns(row, named):
        raise InputError(
            f"{stands} the images in {' and '.join(map(repr, found))}; set data.image_key={found[0]}, or leave"
            f" the column out of the file where {IMAGE_PLACE} is meant as text"
        )
    if is_mark:
        others = [repr(name) for name in row if name not in named]
        raise InputError(
            f"{stands} a column of images; set data.image_key (the row also has"
            f" {', '.join(others) or 'no further column'}), or write it otherwise where it is meant as text"
        )


def has_video(row: Mapping[str, Any], text: str) -> bool:
    """Whether `text` marks a video that the row has: no model here takes one."""
    return VIDEO_PLACE in text and any(row.get(name) for name in VIDEO_COLUMNS)


def own_size(image: Any) -> str:
    """The key by which an image of a row asks for a size of its own; "" where it has none.

    Example: own_size({"path": "1.png", "max_pixels": 9408}) == "max_pixels"
    """
    parts = cast(dict[str, Any], image) if isinstance(image, dict) else {}
    return next((name for name in OWN_SIZES if parts.get(name) is not None), "")


def _has_image(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_image, cast(list[Any], value)))
    if isinstance(value, dict):
        parts = cast(dict[str, Any], value)
        return any(_has_image(parts.get(key)) for key in ("bytes", "path"))
    if isinstance(value, str):
        return value.lower().endswith(SUFFIXES) and len(value.splitlines()) == 1
    return isinstance(value, bytes)
