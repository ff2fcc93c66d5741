"""Versions of a tiny model, as a replica's shadow holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trimaran.model.folder import read_model_folder
from weights.delta.delta_stage import apply_verified
from weights.memory.host_memory import DTYPE_NAMES
from weights.memory.shadow import Shadow
from weights.sending.snapshot import Snapshot, TensorPart, take_snapshot
from weights.version.grid import cut_tensors


def snapshot_of(folder: Path | None, tensors: dict[str, torch.Tensor], **options: Any) -> Snapshot:
    """All of `tensors`, on the grid of the model in `folder`; None: each is one block."""
    specs = [
        (name, DTYPE_NAMES[value.dtype], tuple(value.shape)) for name, value in tensors.items()
    ]
    cut = cut_tensors(specs, read_model_folder(folder) if folder else None)
    parts = [
        TensorPart(info.name, 0, info.shape[info.axis], tensors[info.name].detach()) for info in cut
    ]
    num_blocks = sum(info.num_blocks for info in cut)
    return take_snapshot(cut, parts, ((0, num_blocks),), **options)


def shadow_of(folder: Path | None, tensors: dict[str, torch.Tensor]) -> Shadow:
    snapshot = snapshot_of(folder, tensors)
    shadow = Shadow(snapshot.manifest)
    shadow.buffer.copy_(snapshot.buffer)
    return shadow


def patched_shadow_of(
    folder: Path | None, old: dict[str, torch.Tensor], new: dict[str, torch.Tensor]
) -> Shadow:
    """Of `new`, over the memory of `old`, as a delta makes it: with changes."""
    before = snapshot_of(folder, old)
    base = Shadow(before.manifest)
    base.buffer.copy_(before.buffer)
    after = snapshot_of(folder, new, reuse=before, keep_delta=True)
    assert after.delta
    shadow = Shadow(after.manifest, reuse=base)
    apply_verified(shadow, after.delta, lambda: None)
    return shadow


def draw_adapters(
    weights: dict[str, torch.Tensor], rank: int, seed: int
) -> dict[str, torch.Tensor]:
    """A and B of every matrix of the layers."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in weights.items():
        matrix = name.removesuffix(".weight")
        if matrix.endswith("_proj"):
            for part, shape in (("A", (rank, value.shape[1])), ("B", (value.shape[0], rank))):
                drawn = 0.1 * torch.randn(shape, generator=generator)
                found[f"{matrix}.lora_{part}.weight"] = drawn.to(value.dtype)
    return found
