"""What an import asks of a model's image processor: how large images may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from trimaran.errors import InputError

QWEN25_VL = (56 * 56, 28 * 28 * 16384)
"""Pixels of an image, at least and at most, as the makers' folders of Qwen2.5-VL have them."""


def pixel_bounds(model: str) -> tuple[int, int] | None:
    """Least and most pixels of an image in `model`'s preprocessor_config.json; None where the folder has
    none. Older files name them min_pixels and max_pixels, newer ones size.shortest_edge and
    size.longest_edge. Raises InputError for a file that has neither."""
    file = Path(model).expanduser() / "preprocessor_config.json"
    if not file.is_file():
        return None
    try:
        tree = cast(dict[str, Any], json.loads(file.read_text(encoding="utf-8")))
        size = cast(dict[str, Any], tree.get("size") or {})
        least = tree.get("min_pixels") or size["shortest_edge"]
        most = tree.get("max_pixels") or size["longest_edge"]
        return int(least), int(most)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: names no least and most pixels of an image") from None
