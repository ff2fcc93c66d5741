"""Micro-batches through megatron-core's own pipeline schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.utils import get_attr_wrapped_model

from services.trainer.megatron.groups import from_last, most_micro_batches, stage_group
from services.trainer.megatron.tokens import OneToken, PackedTokens
from services.trainer.step.outputs import TokenLoss, TokenOutputs

NOT_COUNTED = torch.zeros((), dtype=torch.int)
"""megatron-core would divide by the number of tokens; our losses have their denominators inside."""


def train(
    chunks: Sequence[torch.nn.Module],
    micro_batches: Sequence[PackedTokens],
    loss: TokenLoss,
    entropy: bool,
) -> None:
    """Forward and backward; gradients add up, unscaled and not yet summed over ranks."""

    def finish(index: int, outputs: TokenOutputs) -> tuple[torch.Tensor, torch.Tensor, None]:
        is_real = index < len(micro_batches)
        value = loss(index, outputs) if is_real else outputs.logprobs_M.sum()
        return value, NOT_COUNTED.clone(), None

    _run(chunks, micro_batches, finish, entropy, forward_only=False)


@torch.no_grad()
def infer(
    chunks: Sequence[torch.nn.Module], micro_batches: Sequence[PackedTokens], entropy: bool
) -> list[TokenOutputs]:
    """Forward alone. Every stage of the pipeline gets the answer of the last."""

    def finish(
        index: int, outputs: TokenOutputs
    ) -> tuple[torch.Tensor, torch.Tensor, TokenOutputs]:
        return outputs.logprobs_M.new_zeros(()), NOT_COUNTED.clone(), outputs

    found = _run(chunks, micro_batches, finish, entropy, forward_only=True)
    if not micro_batches:  # the same on all stages of this data rank
        return []
    found, stages = found[: len(micro_batches)], stage_group()
    return found if stages is None else _share(found, micro_batches, entropy, stages)


def _run(
    chunks: Sequence[torch.nn.Module],
    micro_batches: Sequence[PackedTokens],
    finish: Callable[..., Any],
    entropy: bool,
    forward_only: bool,
) -> list[Any]:
    """What `finish` gave of each micro-batch, on the last stage. `chunks`: this rank's stages."""
    device = next(chunks[0].parameters()).device
    count = most_micro_batches(len(micro_batches), device)
    if not count:
        return []
    if len(chunks) > 1:  # the interleaved schedule goes round by as many as there are ranks
        ranks = parallel_state.get_pipeline_model_parallel_world_size()
        count = -(-count // ranks) * ranks
    batches = [*micro_batches, *[OneToken.on(device)] * (count - len(micro_batches))]

    def step(
        batches: Iterator[tuple[int, PackedTokens]], model: torch.nn.Module
    ) -> tuple[torch.Tensor | TokenOutputs, Callable[..., Any]]:
        index, packed = next(batches)
        outputs_of: Any = get_attr_wrapped_model(model, "outputs")
        return outputs_of(packed, entropy), partial(finish, index)

    run = get_forward_backward_func()
    return run(
        forward_step_func=step,
        data_iterator=[iter(enumerate(batches)) for _ in chunks],
        model=list(chunks),
        num_microbatches=count,
        seq_length=1,  # stages send each other how many tokens a micro-batch has
        micro_batch_size=1,
        forward_only=forward_only,
    )


def _share(
    found: Sequence[TokenOutputs],
    micro_batches: Sequence[PackedTokens],
    entropy: bool,
    stages: dist.ProcessGroup,
) -> list[TokenOutputs]:
    """From the last stage to all: one broadcast of all numbers."""
    counts = [len(packed.targets_M) for packed in micro_batches]
    parts = 2 if entropy else 1
    if found:
        columns = [torch.cat([one.logprobs_M for one in found])]
        columns += [torch.cat([_entropies(one) for one in found])] if entropy else []
        values = torch.stack(columns)
    else:
        device = micro_batches[0].token_ids_N.device
        values = torch.empty(parts, sum(counts), dtype=torch.float32, device=device)
    from_last(values, stages)
    logprobs = values[0].split(counts)
    entropies = values[1].split(counts) if entropy else [None] * len(counts)
    return [TokenOutputs(*pair) for pair in zip(logprobs, entropies, strict=True)]


def _entropies(outputs: TokenOutputs) -> torch.Tensor:
    assert outputs.entropies_M is not None
    return outputs.entropies_M
