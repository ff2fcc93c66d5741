"""A dataset's image -> the PNG file that rollout and trainer read: the one place that resizes.

Sizes are chosen as Qwen's processors choose them (`smart_resize` of transformers'
image_processing_qwen2_vl), so that these leave a prepared image as it is.
"""

from __future__ import annotations

import io
import json
import math
import re
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.types import MAX_PIXELS

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
"""Eight bits a channel at most: what PIL converts to RGB without cutting numbers off."""
WIDE = re.compile(";(16|32)[BLNS]")
"""How PIL calls the bytes of a PNG or TIFF file whose channels it would cut to the 8 bits of a mode.
BMP's "BGR;16" are 16 bits of all three."""
MAX_ASPECT = 200
"""One side of an image against the other, as in Qwen's processors."""

STRIP = 64
"""Rows of an image that are laid on white at a time."""


def prepare_image(data: bytes, min_pixels: int, max_pixels: int, multiple: int) -> bytes:
    """A PNG file, RGB, upright, whose sides are multiples of `multiple` pixels.

    Turned as its EXIF data say; CMYK and other colours converted, without a colour profile;
    transparent parts white. Raises InputError for what is no whole still image, has more than
    MAX_PIXELS pixels, or is over MAX_ASPECT times as long as it is wide.

    Example: prepare_image(Path("1613.jpg").read_bytes(), 262144, 4194304, multiple=28)
    """
    image = open_image(data)
    width, height = image.size
    size = fit_size(height, width, min_pixels, max_pixels, multiple)
    if (height, width) != size:
        image = image.resize((size[1], size[0]), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def fit_size(
    height: int, width: int, min_pixels: int, max_pixels: int, multiple: int
) -> tuple[int, int]:
    """(height, width): the nearest multiples, scaled where their product is not within the bounds.

    Raises InputError where one side is over MAX_ASPECT times the other.
    Example: fit_size(480, 640, 262144, 4194304, 28) == (476, 644)
    """
    _check_aspect(height, width)
    sides = round(height / multiple) * multiple, round(width / multiple) * multiple
    if math.prod(sides) > max_pixels:
        scale = math.sqrt(height * width / max_pixels)
        high, wide = (math.floor(s / scale / multiple) * multiple for s in (height, width))
        return max(multiple, high), max(multiple, wide)
    if math.prod(sides) < min_pixels:
        scale = math.sqrt(min_pixels / (height * width))
        high, wide = (math.ceil(s * scale / multiple) * multiple for s in (height, width))
        return high, wide
    return sides


def num_tokens(prepared: bytes, multiple: int) -> int:
    """Places that an image takes among a prompt's tokens. `prepared`: by `prepare_image`; only its header is
    read. `multiple`: as there, the side in pixels of what is one token."""
    with Image.open(io.BytesIO(prepared), formats=("PNG",)) as image:
        width, height = image.size
    return width * height // multiple**2


def image_multiple(model_folder: Path) -> int:
    """Pixels of a side that one image token stands for, as the model's config.json says.

    Raises InputError where the folder is not here, or its model takes no images.
    """
    path = model_folder / "config.json"
    try:
        vision = json.loads(path.read_text("utf-8")).get("vision_config", {})
    except (OSError, ValueError, AttributeError) as error:
        raise refused(
            f"model.path: {path} cannot be read",
            error,
            "images are prepared for a model, so the controller's host needs its config.json",
        ) from None
    sizes = [vision.get(key) for key in ("patch_size", "spatial_merge_size")]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(
            f"model.path: {model_folder} takes no images: {path.name} has no vision_config with"
            " patch_size and spatial_merge_size; take a vision-language model, or leave"
            " data.image_key out"
        )
    return math.prod(sizes)


def _check_aspect(height: int, width: int) -> None:
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise InputError(
            f"{width} x {height} pixels: one side is over {MAX_ASPECT} times the other; crop it"
        )


def open_image(data: bytes) -> Image.Image:
    """Decoded, upright, RGB. Raises InputError as `prepare_image` does."""
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        _check(image)
        image.load()
        ImageOps.exif_transpose(image, in_place=True)  # else it makes a copy
        return _as_rgb(image)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"{_count(data)} are no image ({', '.join(FORMATS)})") from None
    except Image.DecompressionBombError as error:
        raise InputError(f"too large ({error}); at most {MAX_PIXELS} pixels") from None
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise InputError(
            f"{_count(data)} are no whole image ({type(error).__name__}: {error})"
        ) from None


def _check(image: Image.Image) -> None:
    """By what its header says, before anything is decoded."""
    width, height = image.size
    if width * height == 0:
        raise InputError(f"{width} x {height} pixels: there is nothing in it")
    if width * height > MAX_PIXELS:
        raise InputError(
            f"{width} x {height} pixels are too many; at most {MAX_PIXELS}: make it smaller"
        )
    _check_aspect(height, width)
    # The further pictures of an MPO file, a photograph of a telephone, are previews or other eyes.
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":
        raise InputError(f"an animation or a file of {frames} pictures; give one still image")
    if image.mode not in MODES or any(
        WIDE.search(str(tile)) for tile in getattr(image, "tile", ())
    ):
        raise InputError(
            f"pixels of mode {image.mode} with more than 8 bits a channel; save it with 8 bits"
        )


def _as_rgb(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    made = Image.new("RGB", image.size)
    for top in range(0, image.height, STRIP):  # whole, each step would be a copy of 4 bytes a pixel
        box = (0, top, image.width, min(top + STRIP, image.height))
        strip = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", strip.size, "white")
        made.paste(Image.alpha_composite(white, strip).convert("RGB"), box)
    return made


def _count(data: bytes) -> str:
    return f"{len(data)} bytes"
