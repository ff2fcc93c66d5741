"""A version's tensors: their digests, their root, and where each lies in one flat buffer.

Pure and without torch. A digest is xxh3-128 over a tensor's bytes, row-major,
with -0 stored as +0 (the sender sees to that), so that versions that compute
the same have the same root.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import xxhash

from trimaran.errors import InputError, TransferError
from trimaran.types import Manifest, TensorInfo

DIGEST_NAME = "xxh3-128"
ALIGNMENT = 64
"""Bytes; every tensor starts on a cache line."""
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


def digest_bytes(view: bytes | bytearray | memoryview) -> str:
    """Hex xxh3-128 of the bytes."""
    return xxhash.xxh3_128_hexdigest(view)


def num_bytes(tensor: TensorInfo) -> int:
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def compute_root(tensors: Iterable[TensorInfo]) -> str:
    """Digest over every tensor's name, dtype, shape and digest.

    Tensors are taken in the order of their names, so the root does not depend
    on the order in which a layout of ranks exports them.
    """
    leaves = sorted([t.name, t.dtype, list(t.shape), t.digest] for t in tensors)
    return digest_bytes(json.dumps([DIGEST_NAME, leaves]).encode())


def build_manifest(infos: Iterable[TensorInfo]) -> Manifest:
    """Raises InputError for a dtype that cannot travel or a name that stands twice."""
    tensors = tuple(infos)
    check_layout(tensors)
    return Manifest(DIGEST_NAME, tensors, compute_root(tensors))


def check_layout(tensors: Sequence[TensorInfo]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.dtype not in ITEM_BYTES:
            raise InputError(
                f"{tensor.name}: dtype {tensor.dtype} cannot travel; known: {', '.join(ITEM_BYTES)}"
            )
        if tensor.name in seen:
            raise InputError(f"{tensor.name}: stands twice in the manifest")
        seen.add(tensor.name)


def check_manifest(manifest: Manifest, root: str) -> None:
    """Raises TransferError unless the manifest is whole and is that of the version with `root`."""
    if manifest.digest_name != DIGEST_NAME:
        raise TransferError(
            f"the manifest's digests are {manifest.digest_name}; this side computes {DIGEST_NAME}"
        )
    try:
        check_layout(manifest.tensors)
    except InputError as error:
        raise TransferError(str(error)) from None
    computed = compute_root(manifest.tensors)
    if not computed == manifest.root == root:
        raise TransferError(
            f"roots differ: version {root}, manifest {manifest.root}, computed {computed}"
        )


def offsets(tensors: Iterable[TensorInfo]) -> tuple[int, ...]:
    """First byte of each tensor in the flat buffer, and last the buffer's length."""
    starts = [0]
    for tensor in tensors:
        end = starts[-1] + num_bytes(tensor)
        starts.append(-(-end // ALIGNMENT) * ALIGNMENT)
    return tuple(starts)


def buckets(total_bytes: int, bucket_bytes: int) -> list[tuple[int, int]]:
    """(start, end) of the pieces in which a flat buffer travels."""
    if bucket_bytes < 1:
        raise InputError(f"bucket_bytes is {bucket_bytes}; it must be at least 1")
    return [
        (start, min(start + bucket_bytes, total_bytes))
        for start in range(0, total_bytes, bucket_bytes)
    ]


def manifest_to_json(manifest: Manifest) -> dict[str, Any]:
    """Plain values, for a process of the engine's own that speaks no protobuf."""
    return {
        "digest_name": manifest.digest_name,
        "root": manifest.root,
        "tensors": [[t.name, t.dtype, list(t.shape), t.digest] for t in manifest.tensors],
    }


def manifest_from_json(tree: dict[str, Any]) -> Manifest:
    tensors = tuple(
        TensorInfo(name, dtype, tuple(shape), digest)
        for name, dtype, shape, digest in tree["tensors"]
    )
    return Manifest(tree["digest_name"], tensors, tree["root"])
