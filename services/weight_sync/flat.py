"""Views of named tensors in one flat host buffer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from services.weight_sync.manifest import digest_bytes, num_bytes, offsets
from trimaran.types import TensorInfo

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def tensor_bytes(
    buffer: torch.Tensor, tensors: Sequence[TensorInfo]
) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
    """Each tensor with the uint8 view of its bytes, padding left out."""
    for tensor, start in zip(tensors, offsets(tensors), strict=False):
        yield tensor, buffer[start : start + num_bytes(tensor)]


def typed_view(piece: torch.Tensor, tensor: TensorInfo) -> torch.Tensor:
    """The bytes of a tensor as a view of its own dtype and shape."""
    return piece.view(DTYPES[tensor.dtype]).view(tensor.shape)


def digest_tensor(piece: torch.Tensor) -> str:
    """Digest of a uint8 host view."""
    return digest_bytes(piece.numpy().data)
