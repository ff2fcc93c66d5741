"""Prepared images -> what a vision tower reads. Rollout and trainer both run this, on equal bytes.

The arithmetic is the model's own: transformers' processor for Qwen's vision-language models, in its
version on PIL and NumPy. Resizing is left out: the reader of the dataset has done that once, and two
libraries would do it differently.

Axes: P patches of all images, D numbers of one patch (channels x frames x height x width), I images.
"""

from __future__ import annotations

import io
import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran import choices
from trimaran.errors import InputError
from trimaran.host.system_errors import refused

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ProcessedImages:
    """The images of one prompt, in the order of its placeholders.

    Example: ImageProcessor(folder).process([png]).grids.tolist() == [[1, 8, 8]]
    """

    patches: NDArray[np.float32]
    """[P, D], image after image."""
    grids: NDArray[np.int64]
    """[I, 3]: of each image the patches in time, height and width."""
    digests: tuple[str, ...]
    """One an image: over its patches, its grid and the processor's settings."""

    @property
    def digest(self) -> str:
        """Over all of them; "" where there is no image."""
        return _hash("".join(self.digests).encode()) if self.digests else ""


def takes_images(model_folder: Path) -> bool:
    """Whether the folder holds a model whose images `ImageProcessor` knows."""
    if not (model_folder / "config.json").is_file():
        return False
    return choices.takes_images(_read_config(model_folder).get("model_type"))


def image_token(model_folder: Path) -> int | None:
    """Its number, None of a model that takes no images. Raises InputError where config.json does not say."""
    if not takes_images(model_folder):
        return None
    return _image_token(_read_config(model_folder), model_folder)


class ImageProcessor:
    """Example: ImageProcessor(Path("models/qwen2.5-vl")).process([png_bytes]).patches"""

    image_token_id: int
    """Stands in a prompt once for each place that an image takes among its tokens."""
    multiple: int
    """Height and width of a prepared image are multiples of it, in pixels."""

    def __init__(self, model_folder: Path) -> None:
        """`model_folder`: a Hugging Face folder. Raises InputError for a model without images."""
        config = _read_config(model_folder)
        if not choices.takes_images(config.get("model_type")):
            raise InputError(
                f"model.path: {model_folder} is a {config.get('model_type')!r}, which takes no images;"
                f" use a model of {choices.vision_families()}, or a dataset without images"
            )
        self.image_token_id = _image_token(config, model_folder)
        self._processor = _load_processor(model_folder)
        self._merge = int(self._processor.merge_size)
        self.multiple = int(self._processor.patch_size) * self._merge
        self._settings = json.dumps(
            {name: getattr(self._processor, name) for name in SETTINGS}, default=str
        ).encode()

    def process(self, images: Sequence[bytes]) -> ProcessedImages:
        """`images`: PNG files of RGB images whose sides are multiples of `multiple`.

        Raises InputError that names an image that is none of these, by its place from 1.
        """
        import numpy as np

        patches: list[Any] = []
        grids: list[Any] = []
        digests: list[str] = []
        for place, data in enumerate(images, 1):
            image = self._open(data, place)
            with _whole(data, place):
                image.load()
            made = self._processor(images=[image], do_resize=False, return_tensors="np")
            patches.append(np.ascontiguousarray(made["pixel_values"], np.float32))
            grids.append(made["image_grid_thw"])
            digests.append(_hash(self._settings, grids[-1].tobytes(), patches[-1].data))
        width = 3 * int(self._processor.temporal_patch_size) * int(self._processor.patch_size) ** 2
        return ProcessedImages(
            np.concatenate([np.zeros((0, width), np.float32), *patches]),
            np.concatenate([np.zeros((0, 3), np.int64), *grids]),
            tuple(digests),
        )

    def grids(self, images: Sequence[bytes]) -> NDArray[np.int64]:
        """[I, 3], those of `process`, by the files' headers: no pixel is decoded, nor checked.

        Raises as `process`, but not for what comes behind a header.
        """
        import numpy as np

        patch = int(self._processor.patch_size)
        sizes = [self._open(data, place).size for place, data in enumerate(images, 1)]
        grids = [(1, height // patch, width // patch) for width, height in sizes]
        return np.array(grids, np.int64).reshape(-1, 3)

    def num_tokens(self, grid: Sequence[int] | NDArray[np.int64]) -> int:
        """Places among a prompt's tokens of an image with this grid (time, height, width)."""
        frames, height, width = (int(size) for size in grid)
        return frames * height * width // self._merge**2

    def _open(self, data: bytes, place: int) -> Any:
        """Only its header is read."""
        from PIL import Image

        with _whole(data, place):
            image = Image.open(io.BytesIO(data), formats=("PNG",))
        width, height = image.size
        if image.mode != "RGB" or height % self.multiple or width % self.multiple:
            raise InputError(
                f"image {place}: {width} x {height} pixels in mode {image.mode}; a prepared image is"
                f" RGB, and its sides are multiples of {self.multiple} for this model"
            )
        return image


SETTINGS = (
    *("patch_size", "merge_size", "temporal_patch_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)
"""All of the processor's that the patches depend on."""


def _load_processor(folder: Path) -> Any:
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

    processor: Any = image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil
    try:
        return processor.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever transformers stumbles over
        raise refused(
            f"model.path: {folder} holds no image processor that transformers can load",
            error,
            "is preprocessor_config.json there?",
        ) from None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        return json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise refused(f"model.path: {folder}/config.json cannot be read", error) from None


def _image_token(config: dict[str, Any], folder: Path) -> int:
    if not isinstance(found := config.get("image_token_id"), int):
        raise InputError(f"model.path: {folder}/config.json lacks image_token_id")
    return found


@contextmanager
def _whole(data: bytes, place: int) -> Generator[None]:
    """Raises InputError where what is inside finds that an image is no whole PNG file."""
    try:
        yield
    except Exception as error:  # whatever a decoder makes of damaged bytes
        raise InputError(
            f"image {place}: {len(data)} bytes are no whole PNG file"
            f" ({type(error).__name__}: {error}); images travel as they were prepared"
        ) from None


def _hash(*parts: bytes | memoryview) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
