"""Images as text of a terminal: in each character the colours of two pixels, one above the other."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Mapping

from PIL import Image

COLUMNS, ROWS = 80, 30
"""Characters of a picture, at most."""
UPPER_HALF = "▀"
COLOURS = "\x1b[38;2;{};{};{};48;2;{};{};{}m"
"""Of the character and of what is behind it: `SGR` 38 and 48 of ECMA-48, with the direct colours of ISO 8613-6."""
RESET = "\x1b[0m"


def shows_pictures(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether standard output is a terminal with colours."""
    is_plain = environment.get("NO_COLOR") or environment.get("TERM", "dumb") == "dumb"
    return sys.stdout.isatty() and not is_plain


def picture(image: bytes) -> Iterator[str]:
    """The lines of a picture that fits the terminal. `image`: a PNG file.

    A character is taken to be twice as high as it is wide.
    """
    columns, rows = shutil.get_terminal_size()
    yield from half_blocks(image, min(columns, COLUMNS), min(max(rows - 4, 1), ROWS))


def half_blocks(image: bytes, columns: int, rows: int) -> Iterator[str]:
    """As many lines of as many characters as the image needs, and not more."""
    with Image.open(io.BytesIO(image), formats=("PNG",)) as opened:
        pixels = opened.convert("RGB")
    pixels.thumbnail((columns, 2 * rows))
    width, height = pixels.size
    pixels = pixels.resize((width, height + height % 2))
    data = pixels.tobytes()
    rows_of = [data[start : start + 3 * width] for start in range(0, len(data), 3 * width)]
    for upper, lower in zip(rows_of[::2], rows_of[1::2], strict=True):
        cells = range(0, 3 * width, 3)
        colours = (COLOURS.format(*upper[x : x + 3], *lower[x : x + 3]) for x in cells)
        yield "".join(f"{colour}{UPPER_HALF}" for colour in colours) + RESET
