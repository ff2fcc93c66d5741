"""A sender's copy of one version: every tensor in one flat host buffer, with its manifest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from services.weight_sync.flat import DTYPE_NAMES, digest_tensor, tensor_bytes, typed_view
from services.weight_sync.manifest import build_manifest, check_layout, offsets
from trimaran.errors import InputError
from trimaran.types import Manifest, TensorInfo

NamedTensor = tuple[str, torch.Tensor]
Place = tuple[TensorInfo, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Snapshot:
    manifest: Manifest
    buffer: torch.Tensor
    """uint8, one dimension, on the host; laid out by `manifest.offsets`."""


def take_snapshot(named_tensors: Iterable[NamedTensor], reuse: Snapshot | None = None) -> Snapshot:
    """Copy, write -0 as +0, digest.

    `reuse` gives its memory up to the new snapshot and must not be sent any
    more; it must be of the same model. Without it the tensors are held until
    all have been named, so that the buffer can be laid out; with it they may
    be made one by one.

    Raises InputError when a name, dtype or shape differs from `reuse`.
    """
    if reuse is None:
        named_tensors = list(named_tensors)
        layout = tuple(_describe(name, tensor) for name, tensor in named_tensors)
        check_layout(layout)
        buffer = torch.zeros(offsets(layout)[-1], dtype=torch.uint8)
    else:
        layout, buffer = reuse.manifest.tensors, reuse.buffer
    infos = [
        _take(info, piece, named)
        for (info, piece), named in _pair(tensor_bytes(buffer, layout), named_tensors)
    ]
    return Snapshot(build_manifest(infos), buffer)


def _describe(name: str, tensor: torch.Tensor) -> TensorInfo:
    if tensor.dtype not in DTYPE_NAMES:
        raise InputError(f"{name}: {tensor.dtype} cannot travel")
    return TensorInfo(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape), "")


def _pair(
    places: Iterable[Place], values: Iterable[NamedTensor]
) -> Iterable[tuple[Place, NamedTensor]]:
    try:
        yield from zip(places, values, strict=True)
    except ValueError:
        raise InputError("the number of tensors differs from the snapshot to reuse") from None


def _take(info: TensorInfo, piece: torch.Tensor, named: NamedTensor) -> TensorInfo:
    name, tensor = named
    found = _describe(name, tensor)
    if (found.name, found.dtype, found.shape) != (info.name, info.dtype, info.shape):
        raise InputError(
            f"{found.name} {found.dtype} {found.shape} differs from the snapshot to reuse:"
            f" {info.name} {info.dtype} {info.shape}"
        )
    with torch.no_grad():
        _copy_positive_zero(typed_view(piece, info), tensor)
    return TensorInfo(info.name, info.dtype, info.shape, digest_tensor(piece))


def _copy_positive_zero(target: torch.Tensor, source: torch.Tensor) -> None:
    if not source.is_floating_point():
        target.copy_(source)
    elif source.device == target.device:
        torch.add(source, 0, out=target)  # -0 + 0 is +0, and every other value stays
    else:
        target.copy_(source).add_(0)
