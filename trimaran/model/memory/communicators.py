"""Groups of ranks in which one trainer rank computes. On an accelerator each has a communicator with
buffers of its own, which it makes at its first call and keeps."""

from __future__ import annotations

from collections.abc import Iterator

from trimaran.config.parallel import RankPlace
from trimaran.model.memory.model import Model

BUFFERS = 400 << 20
"""Bytes of one. HCCL: 2 x HCCL_BUFFSIZE, which is 200 MiB unless it is set (its documentation). NCCL depends
on links and channels: 544 and 688 MiB were seen on four A100 (github.com/NVIDIA/nccl/issues/964)."""


def num_communicators(
    model: Model, place: RankPlace, distributed_optimizer: bool = False, replays: bool = False
) -> int:
    """Of groups with more than one rank. Weight sync's own, where its transport is collective, come on
    top while weights travel. `replays`: choices of experts (`trainer.router.replay`).

    Example: num_communicators(model, Layout(tensor=4).place(0)) == 4
    """
    return sum(size > 1 for size in _sizes(model, place, distributed_optimizer, replays))


def _sizes(
    model: Model, place: RankPlace, distributed_optimizer: bool, replays: bool
) -> Iterator[int]:
    """As services/trainer and megatron-core 0.16 (`parallel_state.py`) make and use them."""
    layout = place.layout
    yield layout.num_ranks  # the batch, and what all must agree on
    yield len(layout.senders) if place.sends else 1
    yield layout.tensor
    yield layout.context
    yield layout.pipeline
    yield 2 if model.facts.tied and _is_at_an_end(place) else 1  # the gradient of the embedding
    yield layout.data  # metrics
    yield layout.data * layout.context  # gradients
    # The gradient's norm.
    yield layout.num_ranks if distributed_optimizer else layout.tensor * layout.pipeline
    if model.facts.num_experts:
        yield layout.expert
        yield layout.expert_tensor
        yield layout.expert_parts  # counts of tokens: a group of its own
    if layout.expert > 1:  # otherwise experts have the groups of the rest
        yield layout.tensor * layout.context * layout.data // layout.expert_parts  # gradients
        yield 1 if distributed_optimizer else layout.expert_parts * layout.pipeline
    if replays:
        yield layout.tensor * layout.context
        yield layout.data * layout.pipeline if place.tensor == place.context == 0 else 1


def _is_at_an_end(place: RankPlace) -> bool:
    return place.layout.pipeline > 1 and (place.pipeline == 0 or place.is_last_stage)
