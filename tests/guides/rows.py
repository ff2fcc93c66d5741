"""Rows in the form of GSM8K and of Geometry3k, as their makers publish them; a few, of our own."""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image, ImageDraw

NUMBERS = {"train": range(2, 10), "test": range(10, 12)}
LEGS = (3, 4, 5)


def write_gsm8k(folder: Path) -> Path:
    """JSON lines, the answer behind ####."""
    folder.mkdir(parents=True)
    for split, numbers in NUMBERS.items():
        rows = [_apples(number) for number in numbers]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def write_geo3k(folder: Path) -> Path:
    """Parquet, each image as its file's bytes."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(parents=True)
    for split, numbers in NUMBERS.items():
        table = pyarrow.Table.from_pylist([_triangle(number) for number in numbers])
        parquet.write_table(table, folder / f"{split}.parquet")
    return folder


def _apples(number: int) -> dict[str, str]:
    total = 3 * number
    return {
        "question": f"Ann picks {number} apples and Ben twice as many. How many have they?",
        "answer": f"Ben picks {2 * number}, together <<3*{number}={total}>>{total}.\n#### {total}",
    }


def _triangle(number: int) -> dict[str, object]:
    """The longest side of a right triangle, of which the two others are drawn."""
    one, other, longest = (leg * number for leg in LEGS)
    image = Image.new("RGB", (200, 160), "white")
    draw = ImageDraw.Draw(image)
    draw.polygon([(30, 20), (30, 130), (170, 130)], outline="black")
    draw.text((5, 70), str(one), fill="black")
    draw.text((90, 135), str(other), fill="black")
    data = io.BytesIO()
    image.save(data, "PNG")
    return {
        "images": [{"bytes": data.getvalue(), "path": None}],
        "problem": "<image>Find the longest side of the triangle.",
        "answer": str(longest),
    }
