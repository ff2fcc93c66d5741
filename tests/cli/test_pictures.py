"""Images in the terminal."""

from __future__ import annotations

import re
import sys

import pytest
from PIL import Image

from tests.data.pictures import encode, picture
from trimaran.cli.pictures import half_blocks, shows_pictures

CELL = re.compile(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀")


def seen(lines: list[str]) -> Image.Image:
    """What a terminal makes of them."""
    cells = [CELL.findall(line) for line in lines]
    assert [CELL.sub("", line) for line in lines] == ["\x1b[0m"] * len(lines)
    image = Image.new("RGB", (len(cells[0]), 2 * len(cells)))
    for y, row in enumerate(cells):
        for x, numbers in enumerate(row):
            image.putpixel((x, 2 * y), tuple(map(int, numbers[:3])))
            image.putpixel((x, 2 * y + 1), tuple(map(int, numbers[3:])))
    return image


def test_a_small_image_is_shown_to_the_pixel() -> None:
    wanted = picture(6, 4)
    found = seen(list(half_blocks(encode(wanted), columns=80, rows=30)))
    assert (found.size, found.tobytes()) == (wanted.size, wanted.tobytes())


@pytest.mark.parametrize(
    ("size", "lines", "columns"),
    [((400, 100), 5, 40), ((100, 400), 10, 5), ((40, 21), 10, 38), ((1000, 5), 1, 40)],
)
def test_a_large_one_fits_and_keeps_its_shape(
    size: tuple[int, int], lines: int, columns: int
) -> None:
    found = list(half_blocks(encode(picture(*size)), columns=40, rows=10))
    assert (len(found), len(CELL.findall(found[0]))) == (lines, columns)


def test_pictures_are_for_terminals_with_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shows_pictures({"TERM": "xterm"})
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert shows_pictures({"TERM": "xterm"})
    for environment in ({}, {"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert not shows_pictures(environment)
