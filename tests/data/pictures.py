"""Small images for tests."""

import io
from typing import Any

from PIL import Image


def picture(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """No two rows or columns of it are equal."""
    image = Image.new("RGB", (width, height))
    image.putdata(
        [(x % 256, y % 256, (x + 3 * y) % 256) for y in range(height) for x in range(width)]
    )
    return image.convert(mode)


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, mode: str = "RGB") -> bytes:
    return encode(picture(width, height, mode))


def decode(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def size_of(data: bytes) -> tuple[int, int]:
    """(width, height)"""
    return decode(data).size
