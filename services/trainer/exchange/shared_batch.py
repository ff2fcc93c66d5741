"""A step's batch, from rank 0 to the others: broadcast as bytes in the process group of all ranks, not
sent by rank 0 once for each of them.

The experts that the engine chose stay behind: each rank gets those that it needs by another way
(services/trainer/megatron/experts/shared_experts.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from trimaran.types import ScoredGroup, TrainingBatch
from trimaran.wire import messages as wire

CHUNK_BYTES = 64 << 20
"""On the device at a time."""


def share_batch(batch: TrainingBatch, device: torch.device) -> TrainingBatch:
    """Rank 0's batch on every rank; elsewhere only the step of `batch` counts. All ranks must call.

    Rank 0 keeps what it has, others get it without chosen experts."""
    payloads = [wire.payload_of(without_experts(one)) for one in batch.groups]
    is_first = dist.get_rank() == 0
    head = torch.tensor([len(payloads), batch.num_steps], dtype=torch.int64, device=device)
    dist.broadcast(head, 0)
    num_groups, num_steps = head.tolist()
    lengths = torch.zeros(num_groups, dtype=torch.int64, device=device)
    if is_first:
        lengths = torch.tensor([*map(len, payloads)], dtype=torch.int64, device=device)
    dist.broadcast(lengths, 0)
    ends = [0, *accumulate(lengths.tolist())]
    if is_first:
        _send(payloads, ends[-1], device)
        return batch
    data = _receive(ends[-1], device)
    groups = (wire.decode_scored_group(bytes(data[a:b])) for a, b in pairwise(ends))
    return TrainingBatch(batch.step, tuple(groups), num_steps)


def _send(payloads: Sequence[bytes], size: int, device: torch.device) -> None:
    length = min(CHUNK_BYTES, size)
    chunks = in_chunks((np.frombuffer(one, np.uint8) for one in payloads), length)
    for _ in range(0, size, CHUNK_BYTES):
        dist.broadcast(torch.from_numpy(next(chunks)).to(device), 0)


def _receive(size: int, device: torch.device) -> Any:
    """uint8 [size] on the host: what rank 0 sends."""
    data = np.empty(size, np.uint8)
    chunk = torch.empty(min(CHUNK_BYTES, size), dtype=torch.uint8, device=device)
    for start in range(0, size, CHUNK_BYTES):
        dist.broadcast(chunk, 0)
        part = data[start : start + CHUNK_BYTES]
        part[:] = chunk[: len(part)].cpu().numpy()
    return data


def in_chunks(parts: Iterable[Any], length: int) -> Iterator[Any]:
    """Arrays of bytes one after the other, as arrays of `length`; the last one is filled up with zeros,
    and so are all after it. Each is written over by the next."""
    chunk, filled = np.empty(length, np.uint8), 0
    for part in parts:
        while len(part):
            taken = min(length - filled, len(part))
            chunk[filled : filled + taken] = part[:taken]
            part, filled = part[taken:], filled + taken
            if filled == length:
                yield chunk
                filled = 0
    while True:
        chunk[filled:] = 0
        yield chunk
        filled = 0


def without_experts(scored: ScoredGroup) -> ScoredGroup:
    group = scored.group
    sequences = chain.from_iterable((one, *one.branches) for one in group.completions_G)
    if not group.prompt_experts and not any(one.experts for one in sequences):
        return scored
    completions = tuple(
        replace(
            one,
            experts=b"",
            branches=tuple(replace(branch, experts=b"") for branch in one.branches),
        )
        for one in group.completions_G
    )
    group = replace(group, completions_G=completions, prompt_experts=b"")
    return replace(scored, group=group, payload=b"")
