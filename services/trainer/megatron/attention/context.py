"""Context parallelism that divides the heads: each rank has some tokens outside the attention, and all
tokens of some heads inside it (DeepSpeed-Ulysses, arXiv 2309.14509).

    [n, H, D] ── all-to-all ──▶ [N, H / X, D] ── attention ──▶ [N, H / X, D] ── all-to-all ──▶ [n, H, D]

Token i lies on rank i mod X, so that each rank has as many tokens of prompts, which have no
log-probability, as the others.

Axes: N packed tokens, n = N / X of this rank, X ranks, M trained tokens, H heads, K key/value heads, D
channels of a head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel

from services.trainer.step.outputs import TokenOutputs


@dataclass(frozen=True, slots=True)
class ContextSplit:
    """Example: ContextSplit(rank=1, size=2, group=group).own(token_ids_N) are the odd ones"""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    """None for a rank alone."""

    def own(self, x_N: torch.Tensor) -> torch.Tensor:
        """This rank's. N is a multiple of the size."""
        return x_N[self.rank :: self.size]

    def key_heads(self, count: int) -> int:
        """How many of so many key/value heads one rank has. Fewer heads than ranks are repeated."""
        return max(1, count // self.size)

    def to_heads(
        self, query_nHD: torch.Tensor, key_nKD: torch.Tensor, value_nKD: torch.Tensor
    ) -> list[torch.Tensor]:
        """Query, key and value of all tokens: [N, H / X, D], and twice [N, K / X, D]."""
        if self.group is None:
            return [query_nHD, key_nKD, value_nKD]
        by_rank = [self._by_rank(x) for x in (query_nHD, key_nKD, value_nKD)]
        heads = [x.shape[2] for x in by_rank]
        sent = torch.cat(by_rank, dim=2).transpose(0, 1)
        received = tensor_parallel.all_to_all(self.group, sent)
        return [x.transpose(0, 1).flatten(0, 1) for x in received.split(heads, dim=2)]

    def to_tokens(self, x_NHD: torch.Tensor) -> torch.Tensor:
        """[N, H / X, D] -> [n, H, D]."""
        if self.group is None:
            return x_NHD
        sent = x_NHD.unflatten(0, (-1, self.size)).transpose(0, 1)
        received = tensor_parallel.all_to_all(self.group, sent)
        return received.transpose(0, 1).flatten(1, 2)

    def _by_rank(self, x_nHD: torch.Tensor) -> torch.Tensor:
        """[n, X, heads of a rank, D]: consecutive heads stay together."""
        if (count := x_nHD.shape[1]) < self.size:
            x_nHD = x_nHD.repeat_interleave(self.size // count, dim=1)
        return x_nHD.unflatten(1, (self.size, -1))

    def find(self, sources_M: torch.Tensor) -> tuple[torch.Tensor | slice, torch.Tensor]:
        """Which of the trained tokens are predicted here, and the place of each source among n."""
        if self.group is None:
            return slice(None), sources_M
        own = (sources_M % self.size == self.rank).nonzero()[:, 0]
        return own, sources_M.index_select(0, own) // self.size

    def join(self, outputs: TokenOutputs, own: torch.Tensor | slice, count: int) -> TokenOutputs:
        """Those of all `count` trained tokens, on every rank, from each rank's `own`.

        Every rank computes the whole loss of them. Its gradient reaches the rank's own only, so the
        sum over the ranks, which the gradient buffers form, counts each token once.
        """
        if not isinstance(own, torch.Tensor):
            return outputs
        logprobs, entropies = outputs.logprobs_M, outputs.entropies_M
        values = torch.stack([logprobs] if entropies is None else [logprobs, entropies])
        whole = values.new_zeros(len(values), count).index_copy(1, own, values)
        whole = tensor_parallel.reduce_from_tensor_model_parallel_region(whole, self.group)
        return TokenOutputs(whole[0], None if entropies is None else whole[1])


ALONE = ContextSplit()
