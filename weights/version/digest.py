"""Digests of blocks: XXH3 with 128 bits (https://github.com/Cyan4973/xxHash).

They find faults. They stop no forger, because there is no secret in them.
"""

from __future__ import annotations

import torch

from trimaran.host.device import EXACT_KINDS
from weights.version.manifest import digest_bytes

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensor(piece: torch.Tensor) -> str:
    """Hex digest of a contiguous uint8 tensor, on any device."""
    return digest_bytes(piece.cpu().numpy().data)


def digest_value(tensor: torch.Tensor, expected: str = "") -> str:
    """Hex digest of a tensor's elements, row-major, with -0 as +0, whatever its strides.

    `expected`: that of elements without -0, which need not be looked for then; to look takes longer than
    to digest.
    """
    flat = _exact(tensor.detach()).contiguous().view(-1)
    if expected and digest_tensor(flat.view(torch.uint8)) == expected:
        return expected
    return digest_tensor(_to_bytes(flat))


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """The same, on a device that is known to compute exactly with it."""
    return tensor if tensor.device.type in EXACT_KINDS else tensor.cpu()


def _to_bytes(flat: torch.Tensor) -> torch.Tensor:
    """With -0 as +0."""
    if flat.is_floating_point():
        # On the bits: arithmetic would flush denormals on some devices and quiet NaNs.
        bits = flat.view(INTEGERS[flat.element_size()])
        negative_zero = bits == torch.iinfo(bits.dtype).min
        flat = bits.masked_fill(negative_zero, 0) if negative_zero.any() else bits
    return flat.view(torch.uint8)
