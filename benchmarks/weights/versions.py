"""Versions of the model folder as snapshots, and the nouns that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.config import RunConfig, WeightSyncSection, parse_config
from trimaran.types import PolicyVersion, TransferLimits, VersionId

if TYPE_CHECKING:
    import torch

    from weights.sending.snapshot import Snapshot

RUN_ID = "bench"
TIMEOUT_SECONDS = 60.0
BUCKET_BYTES = WeightSyncSection().bucket_mib << 20
LIMITS = TransferLimits(bucket_bytes=BUCKET_BYTES, timeout=TIMEOUT_SECONDS)


def load_model(model: Path) -> dict[str, torch.Tensor]:
    """By Hugging Face name, in private memory."""
    from safetensors.torch import load_file

    return {name: tensor.clone() for name, tensor in load_file(model / "model.safetensors").items()}


def change_all(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Another version, of which every block differs."""
    return {name: tensor * 1.0625 for name, tensor in tensors.items()}


def snapshot_of(
    model: Path,
    tensors: Mapping[str, torch.Tensor],
    reuse: Snapshot | None = None,
    keep_delta: bool = False,
) -> Snapshot:
    """Of all blocks, as a trainer of one rank takes it."""
    from trimaran.model.folder import read_model_folder
    from weights.memory.host_memory import DTYPE_NAMES
    from weights.sending.snapshot import TensorPart, take_snapshot
    from weights.version.grid import cut_tensors

    specs = [(name, DTYPE_NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items()]
    infos = cut_tensors(specs, read_model_folder(model))
    parts = [
        TensorPart(info.name, 0, info.shape[info.axis] if info.shape else 1, tensors[info.name])
        for info in infos
    ]
    num_blocks = sum(info.num_blocks for info in infos)
    return take_snapshot(infos, parts, ((0, num_blocks),), reuse=reuse, keep_delta=keep_delta)


def policy_of(snapshot: Snapshot, step: int) -> PolicyVersion:
    root = snapshot.manifest.root
    return PolicyVersion(RUN_ID, VersionId(0, step), root)


def run_config(model: Path, **sections: dict[str, Any]) -> RunConfig:
    rollout = {"max_prompt_tokens": 72, "max_tokens": 24, "kv_cache_gib": 0.5, "device": "cpu"}
    return parse_config(
        {
            "model": {"path": str(model)},
            "data": {"train": "unused"},
            "reward": {"rules": {"last_integer": 1.0}},
            "rollout": rollout | sections.pop("rollout", {}),
            **sections,
        }
    )
