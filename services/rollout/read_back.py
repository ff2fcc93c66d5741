"""Reading loaded weights back in slices of time, and joining what several workers read.

A reader is a generator: it yields (block number, digest) pairs, and None
wherever it may be interrupted, so that an engine can decode between two slices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import torch

from trimaran.errors import InternalError
from trimaran.types import Manifest, Ranges
from weights.version.digest import digest_value
from weights.version.layout import numbers_of
from weights.version.manifest import Block, list_blocks

SLICE_SECONDS = 0.02

Reader = Iterator[tuple[int, str] | None]


def list_wanted(manifest: Manifest, ranges: Ranges) -> list[Block]:
    blocks = list_blocks(manifest.tensors)
    return [blocks[number] for number in numbers_of(ranges)]


def run_slice(reader: Reader, seconds: float) -> tuple[dict[int, str], bool]:
    """What the reader finds in about so many seconds, and whether that was the last of it."""
    deadline = time.monotonic() + seconds
    found: dict[int, str] = {}
    for pair in reader:
        if pair is not None:
            number, digest = pair
            found[number] = digest
        if time.monotonic() >= deadline:
            return found, False
    return found, True


def read_by_name(
    loaded: Callable[[str], torch.Tensor], manifest: Manifest, ranges: Ranges
) -> Iterator[tuple[int, str]]:
    """A reader for an engine that keeps each tensor whole, under its Hugging Face name.

    `loaded` gives the tensor of a name. Raises InternalError for one of another shape.
    Example: dict(read_by_name(model.get_parameter, manifest, ((0, 4),)))
    """
    for block in list_wanted(manifest, ranges):
        tensor = block.tensor
        held = loaded(tensor.name).detach()
        if tuple(held.shape) != tensor.shape:
            raise InternalError(
                f"{tensor.name}: loaded with a shape of {tuple(held.shape)}, not {tensor.shape}"
            )
        if tensor.shape:
            held = held.narrow(tensor.axis, block.start, block.stop - block.start)
        yield block.number, digest_copies(block, [held])


def digest_copies(block: Block, copies: Iterable[torch.Tensor]) -> str:
    """The digest of a block that an engine holds more than once: the first one that is wrong, if any."""
    expected = block.tensor.digests[block.index]
    digests = [digest_value(copy, expected) for copy in copies]
    return first_wrong(block, digests)


def first_wrong(block: Block, digests: list[str]) -> str:
    expected = block.tensor.digests[block.index]
    return next((digest for digest in digests if digest != expected), expected)


def join(manifest: Manifest, ranges: Ranges, found: Iterable[dict[int, str]]) -> dict[int, str]:
    """All the blocks, from what each worker of an engine holds.

    Whatever two workers both hold must be right on both. Raises InternalError
    naming a tensor of which a block is nowhere.
    """
    found = list(found)
    joined: dict[int, str] = {}
    for block in list_wanted(manifest, ranges):
        digests = [digests[block.number] for digests in found if block.number in digests]
        if not digests:
            raise InternalError(
                f"{block.tensor.name}: elements {block.start} to {block.stop} of axis"
                f" {block.tensor.axis} are held by no worker of the engine"
            )
        joined[block.number] = first_wrong(block, digests)
    return joined
