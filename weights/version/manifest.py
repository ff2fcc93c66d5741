"""What a version is: tensors cut into blocks, a digest a block, one Merkle root.

Pure and without torch. Blocks are numbered tensor after tensor, each in the
order of its cuts. A digest is taken over a block's bytes, row-major, with -0
stored as +0 (the exporter sees to that), so that versions that compute the
same have the same root. Digests find faults; they do not stop a forger, which
the relay's authentication is for.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import xxhash

from trimaran.errors import InputError, TransferError
from trimaran.types import Manifest, Ranges, TensorInfo

DIGEST = re.compile("[0-9a-f]{32}")
DIGEST_NAME = "xxh3-128"
"""A root covers it: of digests of another kind the root would be another one, too."""
ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
}
"""Element sizes by dtype, as safetensors spells them."""


@dataclass(frozen=True, slots=True)
class Block:
    """Elements start..stop (exclusive) of a tensor along its axis.

    Example:

        _, second = list_blocks([TensorInfo("w", "F32", (8, 4), axis=0, cuts=(4,))])
        second.number, second.start, second.stop, second.num_bytes  # 1, 4, 8, 64
    """

    number: int
    tensor: TensorInfo
    index: int
    """Place among the tensor's blocks."""
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        shape, axis = self.tensor.shape, self.tensor.axis
        return (*shape[:axis], self.stop - self.start, *shape[axis + 1 :]) if shape else ()

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.tensor.dtype]


def list_blocks(tensors: Iterable[TensorInfo]) -> list[Block]:
    blocks: list[Block] = []
    for tensor in tensors:
        length = tensor.shape[tensor.axis] if tensor.shape else 1
        bounds = (0, *tensor.cuts, length)
        for index, (start, stop) in enumerate(pairwise(bounds)):
            blocks.append(Block(len(blocks), tensor, index, start, stop))
    return blocks


@lru_cache(maxsize=2)  # those of the live version are asked for once a portion of each read-back
def list_digests(manifest: Manifest) -> tuple[str, ...]:
    """One a block, by block number."""
    return tuple(digest for tensor in manifest.tensors for digest in tensor.digests)


def narrow(manifest: Manifest, ranges: Ranges) -> tuple[Manifest, Ranges]:
    """The tensors from the first wanted block's to the last one's, and the ranges in their numbers.

    A read-back of a large model is asked for in thousands of portions. Each costs what its own
    tensors do, not what the whole manifest does. The root stays that of the whole version.
    """
    if not ranges:
        return replace(manifest, tensors=()), ()
    ends = list(accumulate(tensor.num_blocks for tensor in manifest.tensors))
    first, last = bisect_right(ends, ranges[0][0]), bisect_left(ends, ranges[-1][1])
    before = ends[first] - manifest.tensors[first].num_blocks
    tensors = manifest.tensors[first : last + 1]
    return replace(manifest, tensors=tensors), tuple((a - before, b - before) for a, b in ranges)


def num_bytes(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def digest_bytes(view: bytes | bytearray | memoryview) -> str:
    """Hex xxh3-128 of the bytes."""
    return xxhash.xxh3_128_hexdigest(view)


def compute_root(tensors: Iterable[TensorInfo]) -> str:
    """Merkle root over every block's tensor, place and digest.

    Leaves stand in the order of tensor names and then of cuts, so the root does
    not depend on the order in which a layout of ranks exports them. A tree
    whose level has an odd end carries it up unchanged. Leaves, nodes and the
    root are hashed under prefixes of their own (as in RFC 6962, section 2.1)
    and leaves and nodes have fixed lengths, so that none can stand for another.
    """
    level = [
        xxhash.xxh3_128_digest(head + index.to_bytes(4, "big") + bytes.fromhex(digest))
        for tensor in sorted(tensors, key=lambda tensor: tensor.name)
        for head in (_head(tensor.name, tensor.dtype, tensor.shape, tensor.axis, tensor.cuts),)
        for index, digest in enumerate(tensor.digests)
    ]
    num_leaves = len(level)
    while len(level) > 1:
        pairs = zip(level[::2], level[1::2], strict=False)
        odd_end = level[len(level) // 2 * 2 :]
        level = [xxhash.xxh3_128_digest(b"node" + left + right) for left, right in pairs] + odd_end
    root = b"root" + f"{DIGEST_NAME} {num_leaves} ".encode() + b"".join(level)
    return xxhash.xxh3_128_hexdigest(root)


@lru_cache(maxsize=2**16)  # the same for every version of a model
def _head(name: str, dtype: str, shape: tuple[int, ...], axis: int, cuts: tuple[int, ...]) -> bytes:
    """The first part of a leaf. Its length is fixed, like that of all that follows."""
    described = json.dumps([name, dtype, shape, axis, cuts]).encode()
    return b"leaf" + xxhash.xxh3_128_digest(described)


def build_manifest(tensors: Iterable[TensorInfo]) -> Manifest:
    """Raises InputError for a dtype that cannot travel, a name that stands twice or bad cuts."""
    tensors = tuple(tensors)
    check_tensors(tensors)
    return Manifest(tensors, compute_root(tensors))


def check_tensors(tensors: Sequence[TensorInfo]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.dtype not in ITEM_BYTES:
            raise InputError(
                f"{tensor.name}: dtype {tensor.dtype} cannot travel; known: {', '.join(ITEM_BYTES)}"
            )
        if tensor.name in seen:
            raise InputError(f"{tensor.name}: stands twice in the manifest")
        seen.add(tensor.name)
        _check_cuts(tensor)


def same_tensors(left: Iterable[TensorInfo], right: Iterable[TensorInfo]) -> bool:
    """The same model on the same grid, whatever its values."""

    def strip(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
        return [replace(tensor, digests=()) for tensor in tensors]

    return strip(left) == strip(right)


def _check_cuts(tensor: TensorInfo) -> None:
    if any(length < 0 for length in tensor.shape):
        raise InputError(f"{tensor.name}: shape {tensor.shape} has a negative length")
    if not 0 <= tensor.axis < max(len(tensor.shape), 1):
        raise InputError(f"{tensor.name}: shape {tensor.shape} has no axis {tensor.axis} to cut")
    if not tensor.cuts:
        return
    if not tensor.shape:
        raise InputError(f"{tensor.name}: a scalar cannot be cut")
    bounds = (0, *tensor.cuts, tensor.shape[tensor.axis])
    if any(start >= stop for start, stop in pairwise(bounds)):
        raise InputError(f"{tensor.name}: cuts {tensor.cuts} must rise inside 0..{bounds[-1]}")


def check_manifest(manifest: Manifest, root: str) -> None:
    """Raises TransferError unless the manifest is whole and is that of the version with `root`."""
    try:
        check_tensors(manifest.tensors)
    except InputError as error:
        raise TransferError(str(error)) from None
    for tensor in manifest.tensors:
        if len(tensor.digests) != tensor.num_blocks:
            raise TransferError(
                f"{tensor.name}: {tensor.num_blocks} blocks, but {len(tensor.digests)} digests"
            )
        if not all(map(DIGEST.fullmatch, tensor.digests)):
            raise TransferError(f"{tensor.name}: a digest is not 32 hex digits")
    computed = compute_root(manifest.tensors)
    if not computed == manifest.root == root:
        raise TransferError(
            f"roots differ: version {root}, manifest {manifest.root}, computed {computed}"
        )


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """Plain values, for the store and for an engine's own processes, which speak no protobuf."""
    return {
        "root": manifest.root,
        "tensors": [
            [t.name, t.dtype, list(t.shape), t.axis, list(t.cuts), "".join(t.digests)]
            for t in manifest.tensors
        ],
    }


def manifest_from_json(tree: dict[str, Any]) -> Manifest:
    tensors = tuple(
        TensorInfo(
            name,
            dtype,
            tuple(shape),
            axis,
            tuple(cuts),
            tuple(digests[i : i + 32] for i in range(0, len(digests), 32)),
        )
        for name, dtype, shape, axis, cuts, digests in tree["tensors"]
    )
    return Manifest(tensors, tree["root"])
