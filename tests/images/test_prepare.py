import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.data.pictures import decode, encode, picture, png
from trimaran.data.images import prepare
from trimaran.data.images.prepare import fit_size, image_multiple, prepare_image
from trimaran.errors import InputError
from trimaran.types import MAX_PIXELS

SIDES = st.integers(1, 3000)
LARGE = 10**9


def prepared(data: bytes, least: int = 1, most: int = LARGE, multiple: int = 28) -> Image.Image:
    found = decode(prepare_image(data, least, most, multiple))
    assert (found.format, found.mode) == ("PNG", "RGB")
    return found


@given(
    height=SIDES,
    width=SIDES,
    multiple=st.sampled_from([28, 32]),
    least=st.sampled_from([1, 3136, 262144]),
    most=st.sampled_from([262144, 1003520, 4194304]),
)
def test_sizes_are_those_of_qwens_processors(
    height: int, width: int, multiple: int, least: int, most: int
) -> None:
    qwen = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(InputError, match="over 200 times"):
            fit_size(height, width, least, most, multiple)
        return
    found = fit_size(height, width, least, most, multiple)
    assert found == tuple(qwen.smart_resize(height, width, multiple, least, most))


@given(SIDES, SIDES)
def test_a_prepared_size_stays(height: int, width: int) -> None:
    if max(height, width) > 150 * min(height, width):
        return
    once = fit_size(height, width, 262144, 4194304, 28)
    assert once[0] % 28 == once[1] % 28 == 0
    assert fit_size(*once, 262144, 4194304, 28) == once


def test_an_image_that_fits_keeps_its_pixels() -> None:
    source = picture(56, 84)
    assert prepared(encode(source)).tobytes() == source.tobytes()


def test_a_photograph_is_turned_as_its_exif_data_say() -> None:
    source = picture(56, 28)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    found = prepared(encode(source, exif=exif))
    assert found.size == (28, 56)
    assert found.tobytes() == source.transpose(Image.Transpose.ROTATE_270).tobytes()
    assert not found.getexif()


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA"])
def test_other_modes_become_rgb(mode: str) -> None:
    found = prepared(png(28, 28, mode))
    assert found.tobytes() == picture(28, 28, mode).convert("RGB").tobytes()


def test_cmyk_becomes_rgb() -> None:
    black = Image.new("CMYK", (28, 28), (0, 0, 0, 255))
    assert prepared(encode(black, "JPEG")).getpixel((5, 5)) == (0, 0, 0)


def test_transparent_parts_become_white() -> None:
    clear = Image.new("RGBA", (28, 28), (255, 0, 0, 0))
    assert prepared(encode(clear)).getpixel((0, 0)) == (255, 255, 255)
    half = Image.new("RGBA", (28, 28), (0, 0, 0, 128))
    assert prepared(encode(half)).getpixel((0, 0)) == (127, 127, 127)
    gif = Image.new("P", (28, 28), 3)
    assert prepared(encode(gif, "GIF", transparency=3)).getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_image_of_several_strips_lies_on_white_as_a_whole(mode: str) -> None:
    source = picture(28, 196, mode)
    if mode == "P":
        source.info["transparency"] = bytes(range(256))
    else:
        source.putalpha(picture(28, 196, "L"))
    whole = source.convert("RGBA")
    expected = Image.alpha_composite(Image.new("RGBA", whole.size, "white"), whole).convert("RGB")
    assert prepared(encode(source)).tobytes() == expected.tobytes()


def test_a_large_transparent_image_takes_few_copies() -> None:
    """Measured in a process of its own, whose peak is no other test's."""
    side = 2048
    data = encode(Image.new("P", (side, side), 3), transparency=3)
    code = (
        "import pathlib, sys\n"
        "from trimaran.data.images.prepare import prepare_image\n"
        "from tests.data.pictures import png\n"
        "status = pathlib.Path('/proc/self/status')\n"
        "def peak():\n"
        "    return int(status.read_text().partition('VmHWM:')[2].split()[0]) << 10\n"
        "prepare_image(png(28, 28, 'LA'), 784, 784, 28)\n"
        "before, data = peak(), sys.stdin.buffer.read()\n"
        "prepare_image(data, 784, 784, 28)\n"
        "print(peak() - before)\n"
    )
    reported = subprocess.run(
        [sys.executable, "-c", code], input=data, capture_output=True, check=True, timeout=60
    )
    assert int(reported.stdout) < 8 * side**2  # 17 bytes a pixel as a whole


SECOND: Any = {"save_all": True, "append_images": [Image.new("RGB", (28, 28), "red")]}


def test_an_mpo_photograph_is_its_first_picture() -> None:
    data = encode(Image.new("RGB", (28, 28), "blue"), "MPO", **SECOND)
    assert decode(data).format == "MPO"
    pixel = prepared(data).getpixel((5, 5))
    assert isinstance(pixel, tuple)
    assert pixel[2] > 200


def header_of(width: int, height: int, bits: int = 8, body: bytes = b"\0" * 100) -> bytes:
    """A PNG file that says so large it is, and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        code = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", code)

    header = struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(body))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes are no image"),
        (b"%PDF-1.7 ...", "12 bytes are no image"),
        (png(300, 300)[:-500], "are no whole image"),
        (encode(picture(300, 300), "JPEG")[:2000], "are no whole image"),
        (header_of(100, 100), "are no whole image"),
        (header_of(30_000, 30_000), "too large"),
        (header_of(8_193, 8_192), f"8193 x 8192 pixels are too many; at most {MAX_PIXELS}"),
        (png(1, 300), "1 x 300 pixels: one side is over 200 times the other"),
        (encode(picture(28, 28), "GIF", **SECOND), "an animation or a file of 2 pictures"),
        (encode(picture(28, 28), "PNG", **SECOND), "an animation or a file of 2 pictures"),
        (encode(Image.new("I;16", (28, 28))), "pixels of mode I;16"),
        (header_of(28, 28, 16, b"\0" * 28 * (1 + 28 * 6)), "RGB with more than 8 bits a channel"),
    ],
)
def test_what_is_no_still_image_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        prepare_image(data, 1, LARGE, 28)
    assert message in str(caught.value)


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(InputError):
        prepare_image(header_of(0, 5), 1, LARGE, 28)
    with pytest.raises(InputError, match="there is nothing in it"):
        prepare._check(Image.new("RGB", (5, 0)))


def test_the_multiple_is_that_of_the_models_tower(tmp_path: Path) -> None:
    vision = {"patch_size": 16, "spatial_merge_size": 2}
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": vision}))
    assert image_multiple(tmp_path) == 32
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(InputError, match="takes no images"):
        image_multiple(tmp_path)
    with pytest.raises(InputError, match="the controller's host needs its config"):
        image_multiple(tmp_path / "none")
