"""Log-probabilities of chosen tokens from hidden states, over a vocabulary split by TP.

Axes: M tokens, V entries of the vocabulary on this rank, C channels.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

CHUNK_ROWS = 128
"""Rows whose fp32 logits exist at a time."""


class _VocabParallelLogprobs(torch.autograd.Function):
    """log softmax(hidden @ weight^T / temperature)[target].

    Keeps the logits in the model's dtype [M, V] for the backward pass, where
    they turn in place into their own gradient; fp32 exists by chunks only.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MC: torch.Tensor,
        weight_VC: torch.Tensor,
        targets_M: torch.Tensor,
        first_entry: int,
        temperature: float,
        group: dist.ProcessGroup | None,
    ) -> torch.Tensor:
        logits = F.linear(hidden_MC, weight_VC)
        num_entries = weight_VC.shape[0]
        local = targets_M - first_entry
        here = (local >= 0) & (local < num_entries)
        local = local.clamp(0, num_entries - 1)
        normalizers = torch.empty(len(targets_M), dtype=torch.float32, device=logits.device)
        for rows in _chunks(len(targets_M)):
            normalizers[rows] = _scaled(logits[rows], temperature).logsumexp(dim=-1)
        chosen = _scaled(logits.gather(-1, local[:, None]).squeeze(-1), temperature)
        chosen = torch.where(here, chosen, 0.0)
        if group is not None:
            normalizers, chosen = _combine(normalizers, chosen, group)
        ctx.save_for_backward(hidden_MC, weight_VC, logits, normalizers, local, here)
        ctx.temperature = temperature
        return chosen - normalizers

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, logits, normalizers, local, here = ctx.saved_tensors
        scaled = (gradients[0] / ctx.temperature)[:, None]
        for rows in _chunks(len(normalizers)):
            probs = _scaled(logits[rows], ctx.temperature).sub_(normalizers[rows, None]).exp_()
            probs.mul_(-scaled[rows])
            probs.scatter_add_(-1, local[rows, None], scaled[rows] * here[rows, None])
            logits[rows] = probs.to(logits.dtype)
        return logits @ weight, logits.t() @ hidden, None, None, None, None


def _scaled(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    """In fp32; at temperature 1 without another pass over the vocabulary."""
    logits = logits.float()
    return logits if temperature == 1.0 else logits / temperature


def _chunks(num_rows: int) -> list[slice]:
    return [slice(start, start + CHUNK_ROWS) for start in range(0, num_rows, CHUNK_ROWS)]


def _combine(
    normalizers: torch.Tensor, chosen: torch.Tensor, group: dist.ProcessGroup
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = normalizers.clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    sums = torch.stack([(normalizers - largest).exp(), chosen])
    dist.all_reduce(sums, group=group)
    return largest + sums[0].log(), sums[1]


def vocab_parallel_logprobs(
    hidden_MC: torch.Tensor,
    weight_VC: torch.Tensor,
    targets_M: torch.Tensor,
    first_entry: int,
    temperature: float,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """float32 [M], the same on every rank of `group`.

    `first_entry`: the vocabulary entry of row 0 of this rank's weight. `group`:
    the tensor-parallel group, or None for one rank. The gradient of `hidden_MC`
    is this rank's part only; the caller sums it over the group.
    """
    return _VocabParallelLogprobs.apply(  # type: ignore[no-any-return]
        hidden_MC, weight_VC, targets_M, first_entry, temperature, group
    )
