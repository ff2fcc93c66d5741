"""A prompt's images -> its expanded tokens, and what the vision tower reads.

A chat template makes one image token of an image. The model needs one for each place that the image
takes among the tokens, which depends on its size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.choices import vision_families
from trimaran.data.images.processor import (
    ImageProcessor,
    ProcessedImages,
    takes_images,
)
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True)
class PlacedImages:
    """The processed images of a prompt, and where each stands among its expanded tokens.

    Example: PlacedImages(processed, ranges=((15, 16), (40, 4)))
    """

    processed: ProcessedImages
    ranges: tuple[tuple[int, int], ...]
    """For each image the place of its first token, and how many it has."""


class ImagePlacer:
    """Example: tokens, placed = ImagePlacer(folder, limit=2).place([png], tokens)"""

    def __init__(self, model_folder: Path, limit: int) -> None:
        """`limit`: images of one prompt."""
        self._limit = limit
        self._processor = ImageProcessor(model_folder) if takes_images(model_folder) else None

    def place(
        self, images: Sequence[bytes], token_ids: Sequence[int]
    ) -> tuple[tuple[int, ...], PlacedImages | None]:
        """Expands a prompt's `token_ids`, which hold one image token for each of `images`.

        Returns the tokens as they are, and None, where there are no images. Raises InputError.
        """
        processor = self._processor
        if processor is None:
            if images:
                raise InputError(
                    "it has images, and the model takes none; use a model of"
                    f" {vision_families()}, or a dataset without images"
                )
            return tuple(token_ids), None
        if len(images) > self._limit:
            raise InputError(f"it has {len(images)} images; rollout.limit_images is {self._limit}")
        check_image_tokens(token_ids, processor.image_token_id, len(images))
        if not images:
            return tuple(token_ids), None
        processed, counts = _processed(processor, images)
        expanded, ranges = expand(token_ids, processor.image_token_id, counts)
        return expanded, PlacedImages(processed, ranges)

    def find(self, images: Sequence[bytes], token_ids: Sequence[int]) -> PlacedImages | None:
        """Where `images` stand in what `place` has expanded for them, with other tokens behind it; None
        without images."""
        if not images:
            return None
        assert self._processor, "place has refused them"
        processed, counts = _processed(self._processor, images)
        ranges = find_ranges(token_ids, self._processor.image_token_id, counts)
        return PlacedImages(processed, ranges)


def _processed(
    processor: ImageProcessor, images: Sequence[bytes]
) -> tuple[ProcessedImages, list[int]]:
    """With the tokens of each."""
    processed = processor.process(images)
    return processed, [processor.num_tokens(grid) for grid in processed.grids]


def check_image_tokens(token_ids: Sequence[int], image_token_id: int, num_images: int) -> None:
    """The places of images in a prompt as the chat template made it. Raises InputError unless there
    is one token an image."""
    found = list(token_ids).count(image_token_id)
    if found != num_images:
        raise InputError(
            f"the chat template makes {found} image tokens of {num_images} images; a text must not hold the"
            " model's image token itself, such as <|image_pad|>, and the template must take images"
        )


def expand(
    token_ids: Sequence[int], image_token_id: int, counts: Sequence[int]
) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """The n-th image token as often as the n-th count says; and of each: first place, count.

    Example: expand((1, 9, 2, 9), 9, (2, 3)) == ((1, 9, 9, 2, 9, 9, 9), ((1, 2), (4, 3)))
    """
    left = iter(counts)
    expanded: list[int] = []
    ranges: list[tuple[int, int]] = []
    for token_id in token_ids:
        count = 1
        if token_id == image_token_id:
            count = next(left)
            ranges.append((len(expanded), count))
        expanded += [token_id] * count
    return tuple(expanded), tuple(ranges)


def find_ranges(
    token_ids: Sequence[int], image_token_id: int, counts: Sequence[int]
) -> tuple[tuple[int, int], ...]:
    """Those of `expand`, in what it made. An image token behind them is text, which the model has sampled.

    Example: find_ranges((1, 9, 9, 2, 9, 9, 9, 4, 9), 9, (2, 3)) == ((1, 2), (4, 3))
    """
    ranges: list[tuple[int, int]] = []
    behind = 0
    for count in counts:
        start = token_ids.index(image_token_id, behind)
        ranges.append((start, count))
        behind = start + count
    return tuple(ranges)
