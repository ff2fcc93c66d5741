"""Digests of blocks: one for bytes on a host, one that a device computes where its tensors lie.

Both find faults; neither stops a forger, because their coefficients are public.

**xxh3-128** is XXH3 of the bytes (https://github.com/Cyan4973/xxHash).

**polynomial-m31** uses torch operations only; where a device is not known to have
them for these types (`trimaran.device.EXACT_KINDS`), they run on the host. All
arithmetic is modulo the Mersenne prime p = 2^31 - 1, in four lanes that differ in
their coefficients.
The bytes, with zeros up to a multiple of 2 * ROW, are read as little-endian
words w of 16 bits, in m rows of ROW words. A lane has coefficients a_0..a_(ROW-1)
and a point r; with N the number of bytes its value is

    h_j = sum_i a_i * w_(j,i) mod p                                   (multilinear)
    value = N mod 2^30 + (N >> 30) * r + sum_j h_j * r^(j+2) mod p     (polynomial)

The digest is the four values, four bytes each, most significant first. No sum
leaves int64: a row's is below ROW * 2^31 * 2^16 = 2^59, each product of the
polynomial below 2^62 and reduced before it is added to fewer than 2^32 others.

Two different blocks of at most n words collide in one lane with probability at
most (m + 2) / p, m = ceil(n / ROW), over the choice of a and r: their rows
differ somewhere and hash alike with 1/p (Carter and Wegman, "Universal classes
of hash functions", 1979); if they do not, or if only the lengths differ, two
polynomials of degree m + 1 at most agree in at most m + 1 points. Four lanes:
((m + 2) / p)^4, which is 2^-92 for a block of a million words. The coefficients
are fixed (SHAKE-256 of a label), so the bound is over faults that do not depend
on them.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import numpy as np
import torch

from services.weight_sync.data.manifest import digest_bytes
from trimaran.choices import DIGESTS
from trimaran.device import EXACT_KINDS

P = 2**31 - 1
LANES = 4
ROW = 4096
"""Words."""
SPAN = 256
"""Rows that are widened to int64 at a time, so that a large block needs little memory."""
LABEL = b"trimaran polynomial-m31"
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensor(name: str, piece: torch.Tensor) -> str:
    """Hex digest of a contiguous uint8 tensor; `name` is one in `trimaran.choices.DIGESTS`."""
    return _function(name)(_exact(piece))


@functools.cache
def _function(name: str) -> Callable[[torch.Tensor], str]:
    return DIGESTS.load(name)


def digest_value(name: str, tensor: torch.Tensor) -> str:
    """Hex digest of a tensor's elements, row-major, with -0 as +0, whatever its strides."""
    return digest_tensor(name, _to_bytes(_exact(tensor.detach())))


def _exact(tensor: torch.Tensor) -> torch.Tensor:
    """The same, on a device that is known to compute exactly with it."""
    return tensor if tensor.device.type in EXACT_KINDS else tensor.cpu()


def _to_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().view(-1)
    if tensor.is_floating_point():
        # On the bits: arithmetic would flush denormals on some devices and quiet NaNs.
        bits = flat.view(INTEGERS[flat.element_size()])
        negative_zero = bits == torch.iinfo(bits.dtype).min
        flat = bits.masked_fill(negative_zero, 0) if negative_zero.any() else bits
    return flat.view(torch.uint8)


def xxh3_128(piece: torch.Tensor) -> str:
    return digest_bytes(piece.cpu().numpy().data)


def polynomial_m31(piece: torch.Tensor) -> str:
    num_bytes = piece.numel()
    rows = -(-num_bytes // (2 * ROW))
    hashes = torch.zeros(LANES, rows + 2, dtype=torch.int64, device=piece.device)
    hashes[:, 0], hashes[:, 1] = num_bytes % 2**30, num_bytes >> 30
    coefficients = torch.from_numpy(_coefficients()).to(piece.device)
    for first in range(0, rows, SPAN):
        end = min(first + SPAN, rows)
        words = _words(piece[2 * ROW * first : 2 * ROW * end], end - first)
        for lane in range(LANES):
            hashes[lane, first + 2 : end + 2] = (words * coefficients[lane]).sum(1) % P
    powers = torch.from_numpy(_powers(rows + 2)).to(piece.device)
    values = ((hashes * powers) % P).sum(1) % P
    return b"".join(value.to_bytes(4, "big") for value in values.tolist()).hex()


def _words(piece: torch.Tensor, rows: int) -> torch.Tensor:
    """int64 [rows, ROW]."""
    if missing := 2 * ROW * rows - piece.numel():
        piece = torch.nn.functional.pad(piece, (0, missing))
    if piece.storage_offset() % 2:
        piece = piece.clone()
    return piece.view(torch.int16).view(rows, ROW).to(torch.int64) & 0xFFFF


@functools.cache
def _stream() -> np.ndarray:
    """Numbers below P, uniform but for 2^-33: [LANES, 1 + ROW], the point before the row's."""
    random = hashlib.shake_256(LABEL).digest(8 * LANES * (1 + ROW))
    return (np.frombuffer(random, "<u8") % P).astype(np.int64).reshape(LANES, 1 + ROW)


def _coefficients() -> np.ndarray:
    return _stream()[:, 1:].copy()


@functools.lru_cache(maxsize=64)
def _powers(number: int) -> np.ndarray:
    """Of each lane's point, from 0 to number - 1: int64 [LANES, number]."""
    point = _stream()[:, :1]
    powers = np.ones_like(point)
    while powers.shape[1] < number:
        step = powers[:, -1:] * point % P
        powers = np.concatenate([powers, powers * step % P], axis=1)
    return powers[:, :number].copy()
