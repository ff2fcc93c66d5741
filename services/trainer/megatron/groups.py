"""Groups of ranks that compute together, as megatron-core made them; None for a rank alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from trimaran.config.parallel import ParallelLayout


def tensor_group() -> dist.ProcessGroup | None:
    return _unless_alone(parallel_state.get_tensor_model_parallel_group())


def slices_group() -> dist.ProcessGroup | None:
    """Those that share each of their experts."""
    return _unless_alone(parallel_state.get_expert_tensor_parallel_group())


def context_group() -> dist.ProcessGroup | None:
    """Those that share the tokens of each micro-batch."""
    return _unless_alone(parallel_state.get_context_parallel_group())


def team_group() -> dist.ProcessGroup | None:
    """Those of one data-parallel rank and stage."""
    return _unless_alone(parallel_state.get_tensor_and_context_parallel_group())


def stage_group() -> dist.ProcessGroup | None:
    """The stages of one pipeline."""
    return _unless_alone(parallel_state.get_pipeline_model_parallel_group())


def gather_rows(shard: torch.Tensor, of_expert: bool) -> torch.Tensor:
    """That of all tensor-parallel ranks, or of all that share the expert, one after the other; all of them
    must call."""
    group = slices_group() if of_expert else tensor_group()
    if group is None:
        return shard
    whole = shard.new_empty(dist.get_world_size(group) * len(shard), *shard.shape[1:])
    dist.all_gather(list(whole.chunk(dist.get_world_size(group))), shard.contiguous(), group=group)
    return whole


def most_micro_batches(count: int, device: torch.device) -> int:
    """The most micro-batches of the ranks that must run equally many, because tokens of each pass experts of the others."""
    group = _unless_alone(parallel_state.get_expert_model_parallel_group())
    if group is None:
        return count
    counts = torch.tensor([count], dtype=torch.int32, device=device)
    dist.all_reduce(counts, op=dist.ReduceOp.MAX, group=group)
    return int(counts.item())


def sender_group(layout: ParallelLayout, timeout: float) -> dist.ProcessGroup | None:
    """Makes the group of the ranks that send weights: all ranks must call. Seconds."""
    senders = [one.rank for one in layout.senders]
    if len(senders) == 1:
        return None
    group: Any = dist.new_group(senders, timeout=timedelta(seconds=timeout))
    return group


def from_last(tensor: torch.Tensor, stages: dist.ProcessGroup) -> None:
    """In place: what the last stage has goes to all."""
    dist.broadcast(tensor, dist.get_process_group_ranks(stages)[-1], group=stages)


def _unless_alone(group: Any) -> dist.ProcessGroup | None:
    return cast(dist.ProcessGroup, group) if dist.get_world_size(group) > 1 else None
