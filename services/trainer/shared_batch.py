"""A step's batch, from rank 0 to the others: broadcast as bytes in the process group of all ranks, not
sent by rank 0 once for each of them.

The experts that the engine chose stay behind: each rank gets those that it needs by another way
(services/trainer/megatron/shared_experts.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimaran import wire
from trimaran.types import ScoredGroup, TrainingBatch

CHUNK_BYTES = 64 << 20
"""On the device at a time."""


def share_batch(batch: TrainingBatch, device: torch.device) -> TrainingBatch:
    """Rank 0's batch on every rank; elsewhere `batch` is of the same step and has no groups. All ranks
    must call. Rank 0 keeps what it has, others get it without chosen experts."""
    payloads = [wire.payload_of(_without_experts(one)) for one in batch.groups]
    head = torch.tensor([len(payloads)], dtype=torch.int64, device=device)
    dist.broadcast(head, 0)
    lengths = torch.zeros(int(head.item()), dtype=torch.int64, device=device)
    if dist.get_rank() == 0:
        lengths = torch.tensor([*map(len, payloads)], dtype=torch.int64, device=device)
    dist.broadcast(lengths, 0)
    ends = [0, *accumulate(lengths.tolist())]
    data = _broadcast(payloads, ends[-1], device)
    if dist.get_rank() == 0:
        return batch
    groups = wire.decode_groups(bytes(data[start:stop]) for start, stop in pairwise(ends))
    return replace(batch, groups=groups)


def _broadcast(payloads: Sequence[bytes], size: int, device: torch.device) -> Any:
    """uint8 [size] on the host: those of rank 0, one after the other."""
    data = np.empty(size, np.uint8)
    if dist.get_rank() == 0:
        data[:] = np.frombuffer(b"".join(payloads), np.uint8)
    for start in range(0, size, CHUNK_BYTES):
        part = torch.from_numpy(data[start : start + CHUNK_BYTES])
        moved = part.to(device)
        dist.broadcast(moved, 0)
        part.copy_(moved)
    return data


def _without_experts(scored: ScoredGroup) -> ScoredGroup:
    group = scored.group
    if not group.prompt_experts and not any(one.experts for one in group.completions_G):
        return scored
    completions = tuple(replace(one, experts=b"") for one in group.completions_G)
    group = replace(group, completions_G=completions, prompt_experts=b"")
    return replace(scored, group=group, payload=b"")
