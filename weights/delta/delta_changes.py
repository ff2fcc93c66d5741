"""What a delta has overwritten in a shadow, as changes that an engine can write in place."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

import numpy as np
import torch

from trimaran.errors import TransferError
from weights.delta.changed_elements import DeltaPieces, Undo, as_bits, decode_piece
from weights.memory.changes import Changes, lay_out_changes
from weights.memory.host_memory import HostMemory
from weights.memory.shadow import Shadow
from weights.version.layout import PlacedBlock
from weights.version.manifest import ITEM_BYTES, Block

logger = logging.getLogger(__name__)

MAX_SHARE = 1 / 8
"""The share of the version's bytes: where changes take more, single elements gain little on a whole load."""
MAX_ELEMENTS = 2**31 - 1
"""The most elements of a tensor, because positions are int32."""


def collect_changes(shadow: Shadow, overwritten: Undo, base_root: str) -> Changes | None:
    """What was applied to the shadow's memory last. None where they are too many, or the host has
    no room for more than the version."""
    return _collect(shadow, _positions_by_number(shadow, overwritten), base_root)


def changes_of(shadow: Shadow, delta: DeltaPieces) -> Changes | None:
    """The same of a shadow to which another process has applied the delta. Raises TransferError, naming
    the block, for a malformed piece."""
    found: dict[int, np.ndarray] = {}
    for piece in shadow.layout.pieces:
        if data := delta.pieces.get(piece.block.number):
            # The steps would need the base; the new values lie in the shadow.
            positions = decode_piece(piece.block, data, _bits(shadow, piece)).positions
            found[piece.block.number] = np.arange(_bits(shadow, piece).size)[positions]
    return _collect(shadow, found, delta.base_root)


def _collect(shadow: Shadow, found: Mapping[int, np.ndarray], base_root: str) -> Changes | None:
    tensors = shadow.manifest.tensors
    counts: dict[str, list[int]] = {}
    for block in (piece.block for piece in shadow.layout.pieces if piece.block.number in found):
        of_tensor = counts.setdefault(block.tensor.name, [0] * block.tensor.num_blocks)
        of_tensor[block.index] = len(found[block.number])
    places, size = lay_out_changes(tensors, counts)
    if size > MAX_SHARE * shadow.layout.num_bytes:
        return None
    if any(math.prod(place.info.shape) > MAX_ELEMENTS for place in places):
        return None
    try:
        changes = Changes(base_root, counts, HostMemory(size))
    except TransferError as error:
        logger.warning("the next version is loaded whole, not what changed alone: %s", error)
        return None
    _fill(changes, shadow, found)
    return changes


def _positions_by_number(shadow: Shadow, overwritten: Undo) -> dict[int, np.ndarray]:
    """In their block; without blocks that stayed the same."""
    found: dict[int, np.ndarray] = {}
    for piece in shadow.layout.pieces:
        if change := overwritten.changes.get(piece.block.number):
            positions = change.positions
            if isinstance(positions, slice):
                positions = np.flatnonzero(change.values != _bits(shadow, piece))
            if len(positions):
                found[piece.block.number] = positions
    return found


def _bits(shadow: Shadow, piece: PlacedBlock) -> np.ndarray:
    bytes_here = shadow.buffer[piece.start : piece.end].numpy()
    return as_bits(bytes_here, ITEM_BYTES[piece.block.tensor.dtype])


def _fill(changes: Changes, shadow: Shadow, found: Mapping[int, np.ndarray]) -> None:
    places = {place.info.name: place for place in changes.tensors(shadow.manifest.tensors)}
    ends = dict.fromkeys(places, 0)
    for piece in shadow.layout.pieces:
        block = piece.block
        if block.number not in found:
            continue
        positions, name = found[block.number], block.tensor.name
        here = slice(ends[name], ends[name] + len(positions))
        ends[name] = here.stop
        places[name].positions.numpy()[here] = _in_tensor(block, positions)
        values = places[name].values.view(torch.uint8).numpy()
        as_bits(values, ITEM_BYTES[block.tensor.dtype])[here] = _bits(shadow, piece)[positions]


def _in_tensor(block: Block, positions: np.ndarray) -> np.ndarray:
    """From positions in the block, both row-major."""
    shape, axis = block.tensor.shape or (1,), block.tensor.axis
    inner, length = math.prod(shape[axis + 1 :]), block.stop - block.start
    if axis > 0:
        positions = positions + positions // (length * inner) * ((shape[axis] - length) * inner)
    return positions + block.start * inner
