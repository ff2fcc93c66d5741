"""Log-probabilities and entropies from hidden states, over a vocabulary split by tensor parallelism.

Axes: M tokens, V entries of the vocabulary on this rank, C channels.

With l the logits over the temperature, n = log sum exp(l), p = exp(l - n), H = -sum p log p:

    d log p(target) / dl = 1[target] - p          dH / dl = -p (log p + H)

Of parts of the vocabulary with normalizers n_i and entropies H_i of their own:

    n = log sum exp(n_i)                          H = sum exp(n_i - n) (H_i + n - n_i)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from services.trainer.megatron.exponential import exp_
from services.trainer.step.outputs import TokenOutputs

ALL = slice(None)
NOTHING = -1e30
"""A normalizer of no entries; less would give no number in the first sum."""
CHUNK_ROWS = 128
"""Rows whose fp32 logits exist at a time."""
KEPT_BYTES = 1 << 30
"""Logits that are kept for the backward pass. More are computed again there: half as much work again in the
head alone, but logits of 8,192 tokens over 151,936 entries would be 2.5 GB."""
CHUNK_ENTRIES = 8192
"""Where they are computed again: entries of the vocabulary whose logits exist at a time, at most."""
CHUNK_LOGITS = 1 << 26
"""And logits that do, in float32 256 MiB, unless `MIN_ENTRIES` are more."""
MIN_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class OutputHead:
    """How logits are computed, and with whom."""

    temperature: float = 1.0
    group: dist.ProcessGroup | None = None
    """The tensor-parallel group, or None for one rank."""
    fp32: bool = False
    """Products in float32 whatever the model's dtype; they are computed twice instead of kept."""

    def scale(self, logits: torch.Tensor) -> torch.Tensor:
        """In fp32; at temperature 1 without another pass over the vocabulary."""
        logits = logits.float()
        return logits if self.temperature == 1.0 else logits / self.temperature

    def scale_into(self, scratch: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """The same in the first rows of `scratch`, fp32, which serves all chunks one after the other."""
        scaled = scratch[: len(logits)].copy_(logits)
        return scaled if self.temperature == 1.0 else scaled.div_(self.temperature)

    def cast(self, operand: torch.Tensor) -> torch.Tensor:
        return operand.float() if self.fp32 else operand

    def combine(
        self, normalizers: torch.Tensor, chosen: torch.Tensor, entropies: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """From those of the ranks' parts to those of the whole vocabulary; no entropies stay none."""
        if self.group is None:
            return normalizers, chosen, entropies
        largest = normalizers.clone()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=self.group)
        parts = [(normalizers - largest).exp(), chosen]
        if len(entropies):
            parts.append(parts[0] * (entropies + largest - normalizers))
        sums = torch.stack(parts)
        dist.all_reduce(sums, group=self.group)
        logs = sums[0].log()
        if len(entropies):
            entropies = sums[2] / sums[0] + logs
        return largest + logs, sums[1], entropies


def vocab_parallel_outputs(
    hidden_MC: torch.Tensor,
    weight_VC: torch.Tensor,
    targets_M: torch.Tensor,
    head: OutputHead,
    entropy: bool = False,
) -> TokenOutputs:
    """The same on every rank of the group.

    `targets_M`: rows of this rank's weight; what lies outside is another rank's.
    The gradient of `hidden_MC` is this rank's part only; the caller sums it over the group.
    """
    is_kept = len(hidden_MC) * weight_VC.shape[0] * weight_VC.element_size() <= KEPT_BYTES
    in_fp32 = head.fp32 and weight_VC.dtype != torch.float32
    kind = _KeptLogits if is_kept and not in_fp32 else _LogitsAgain
    logprobs, entropies = kind.apply(hidden_MC, weight_VC, targets_M, head, entropy)
    return TokenOutputs(logprobs, entropies if entropy else None)


class _KeptLogits(torch.autograd.Function):
    """Keeps the logits in the model's dtype [M, V] for the backward pass, where they turn in place
    into their own gradient; fp32 exists by chunks of rows only."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MC: torch.Tensor,
        weight_VC: torch.Tensor,
        targets_M: torch.Tensor,
        head: OutputHead,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = F.linear(hidden_MC, weight_VC)
        local, here = _find(targets_M, weight_VC)
        normalizers = logits.new_empty(len(targets_M), dtype=torch.float32)
        entropies = torch.empty_like(normalizers[: len(targets_M) if entropy else 0])
        scratch = _scratch(logits)
        for rows in _chunks(len(targets_M), CHUNK_ROWS):
            scaled = head.scale_into(scratch, logits[rows])
            normalizers[rows], of_rows = _normalize(scaled, entropy)
            if of_rows is not None:
                entropies[rows] = of_rows
        chosen = head.scale(logits.gather(-1, local[:, None]).squeeze(-1))
        normalizers, chosen, entropies = head.combine(
            normalizers, torch.where(here, chosen, 0.0), entropies
        )
        ctx.save_for_backward(hidden_MC, weight_VC, logits, normalizers, entropies, local, here)
        ctx.head = head
        ctx.set_materialize_grads(False)
        return chosen - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, logits, normalizers, entropies, local, here = ctx.saved_tensors
        outer = _Outer.of(gradients, normalizers, entropies, ctx.head.temperature)
        scratch = _scratch(logits)
        for rows in _chunks(len(normalizers), CHUNK_ROWS):
            gradient = outer.of_logits(ctx.head.scale_into(scratch, logits[rows]), rows)
            gradient.scatter_add_(
                -1, local[rows, None], (outer.logprobs[rows] * here[rows])[:, None]
            )
            logits[rows] = gradient
        of_weight = logits.t() @ hidden if ctx.needs_input_grad[1] else None
        return logits @ weight, of_weight, None, None, None


class _LogitsAgain(torch.autograd.Function):
    """By chunks of the vocabulary; logits are computed again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_MC: torch.Tensor,
        weight_VC: torch.Tensor,
        targets_M: torch.Tensor,
        head: OutputHead,
        entropy: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = head.cast(hidden_MC)
        local, here = _find(targets_M, weight_VC)
        normalizers = torch.full_like(targets_M, NOTHING, dtype=torch.float32)
        chosen = torch.zeros_like(normalizers)
        entropies = torch.zeros_like(normalizers[: len(targets_M) if entropy else 0])
        for entries in _chunks(weight_VC.shape[0], _num_entries(len(hidden))):
            scaled = head.scale(F.linear(hidden, head.cast(weight_VC[entries])))
            inside, place = _inside(local, here, entries)
            chosen += torch.where(inside, scaled.gather(-1, place[:, None])[:, 0], 0.0)
            own, of_entries = _normalize(scaled, entropy)
            both = torch.logaddexp(normalizers, own)
            if of_entries is not None:
                before = (normalizers - both).exp() * (entropies + both - normalizers)
                entropies = before + (own - both).exp() * (of_entries + both - own)
            normalizers = both
        normalizers, chosen, entropies = head.combine(normalizers, chosen, entropies)
        ctx.save_for_backward(hidden_MC, weight_VC, normalizers, entropies, local, here)
        ctx.head = head
        ctx.set_materialize_grads(False)
        return chosen - normalizers, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden_MC, weight, normalizers, entropies, local, here = ctx.saved_tensors
        outer = _Outer.of(gradients, normalizers, entropies, ctx.head.temperature)
        hidden = ctx.head.cast(hidden_MC)
        of_hidden = torch.zeros_like(hidden, dtype=torch.float32)
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        for entries in _chunks(weight.shape[0], _num_entries(len(hidden))):
            rows = ctx.head.cast(weight[entries])
            gradient = outer.of_logits(ctx.head.scale(F.linear(hidden, rows)))
            inside, place = _inside(local, here, entries)
            gradient.scatter_add_(-1, place[:, None], (outer.logprobs * inside)[:, None])
            gradient = gradient.to(rows.dtype)
            of_hidden += gradient @ rows
            if of_weight is not None:
                of_weight[entries] = (gradient.t() @ hidden).to(weight.dtype)
        return of_hidden.to(hidden_MC.dtype), of_weight, None, None, None


@dataclass(frozen=True, slots=True)
class _Outer:
    """The gradients that arrive, of logits before the temperature; float32 [M]."""

    logprobs: torch.Tensor
    entropies: torch.Tensor | None
    normalizers: torch.Tensor
    values: torch.Tensor
    """The entropies themselves."""

    @staticmethod
    def of(
        gradients: tuple[torch.Tensor | None, ...],
        normalizers: torch.Tensor,
        values: torch.Tensor,
        temperature: float,
    ) -> _Outer:
        logprobs, entropies = gradients
        if logprobs is None:
            logprobs = torch.zeros_like(normalizers)
        if not len(values):
            entropies = None
        return _Outer(
            logprobs / temperature,
            None if entropies is None else entropies / temperature,
            normalizers,
            values,
        )

    def of_logits(self, scaled: torch.Tensor, rows: slice = ALL) -> torch.Tensor:
        """Without the targets' own part; in place of `scaled` or a copy."""
        logs = scaled.sub_(self.normalizers[rows, None])
        if self.entropies is None:
            return exp_(logs).mul_(-self.logprobs[rows, None])
        factors = (logs + self.values[rows, None]).mul_(self.entropies[rows, None])
        return exp_(logs).mul_(factors.add_(self.logprobs[rows, None]).neg_())


def _scratch(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_empty(min(CHUNK_ROWS, len(logits)), logits.shape[1], dtype=torch.float32)


def _normalize(scaled: torch.Tensor, entropy: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The rows' log-sum-exp, and their entropies where they are asked for. `scaled` is used up."""
    largest = scaled.amax(dim=-1, keepdim=True)
    logs = scaled.sub_(largest)
    exponentials = exp_(logs.clone() if entropy else logs)
    total = exponentials.sum(dim=-1)
    log = total.log()
    entropies = log - exponentials.mul_(logs).sum(dim=-1) / total if entropy else None
    return log + largest[:, 0], entropies


def _find(targets_M: torch.Tensor, weight_VC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Each target's row, or any, and whether it is here."""
    num_entries = weight_VC.shape[0]
    here = (targets_M >= 0) & (targets_M < num_entries)
    return targets_M.clamp(0, num_entries - 1), here


def _inside(
    local: torch.Tensor, here: torch.Tensor, entries: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which targets lie among these entries, and where."""
    inside = here & (local >= entries.start) & (local < entries.stop)
    return inside, torch.where(inside, local - entries.start, 0)


def _num_entries(num_rows: int) -> int:
    """Logits of a chunk of the vocabulary."""
    return min(CHUNK_ENTRIES, max(CHUNK_LOGITS // max(num_rows, 1), MIN_ENTRIES))


def _chunks(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]
