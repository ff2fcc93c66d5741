"""What vLLM computes slowly on a processor, in less time: the sampler, and norms in its own C instead of its Python.

On two cores they took a sixth of the time of short answers of SmolLM2-135M (vLLM 0.30).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

PART_ENTRIES = 256
"""Entries of the vocabulary in a part of `draw`, at most."""
LOG2_E = math.log2(math.e)
VECTOR = 8
"""vLLM's norms in C take widths that are a multiple of it."""


def draw(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One draw a row from softmax(logits), int64 [N], and the log-probabilities, which take the place of the logits.

    The first token whose cumulative probability exceeds u, uniform in [0, 1): one random number a row,
    where vLLM draws an exponential for every entry of the vocabulary. The sums are by parts of the
    vocabulary, and then by entries of one part. A token of probability 0 is never drawn.
    """
    shifted_NV = logits_NV.sub_(logits_NV.amax(-1, keepdim=True))
    # torch computes exp on a processor in more than twice the time of exp2.
    weights_NV = (shifted_NV * LOG2_E).exp2_()
    size = math.gcd(weights_NV.shape[1], PART_ENTRIES)
    parts_NPS = weights_NV.unflatten(1, (-1, size))
    ends_NP = parts_NPS.sum(-1).cumsum_(-1)
    total_N1 = ends_NP[:, -1:]
    wanted_N1 = torch.rand_like(total_N1).mul_(total_N1)
    part_N1 = _first_above(ends_NP, wanted_N1)
    before_N1 = ends_NP.gather(1, (part_N1 - 1).clamp_(min=0)).masked_fill_(part_N1 == 0, 0.0)
    entries_NS = parts_NPS[torch.arange(len(part_N1)), part_N1[:, 0]].cumsum_(-1)
    tokens_N1 = part_N1 * size + _first_above(entries_NS, wanted_N1 - before_N1)
    return tokens_N1[:, 0], shifted_NV.sub_(total_N1.log())


def _first_above(cumulative: torch.Tensor, wanted_N1: torch.Tensor) -> torch.Tensor:
    """The place of each row's first entry above its number, or above the last of the smaller ones where rounding made
    the number too large: int64 [N, 1]. The last place where it is no number: the controller names whose
    log-probabilities are not finite."""
    last_N1 = cumulative[:, -1:]
    largest_N1 = torch.nextafter(last_N1, torch.zeros_like(last_N1))
    places_N1 = torch.searchsorted(cumulative, torch.minimum(wanted_N1, largest_N1), right=True)
    return places_N1.clamp_(max=cumulative.shape[1] - 1)


def without_ranks(logprobs: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The place of each sampled token among all of the vocabulary, which nothing here reads: 0.

    vLLM counts it in each step over all of the vocabulary, in a quarter of the sampler's time.
    """
    return torch.zeros(len(logprobs), dtype=torch.int64)


def install_sampler(inner: Any) -> None:
    """`inner`: vLLM's `TopKTopPSampler`."""
    from vllm.v1.sample import sampler
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    original = inner.forward

    def forward(
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if generators:  # requests with seeds of their own
            return original(logits, generators, k, p)
        return draw(apply_top_k_top_p(logits, k, p))

    inner.forward = forward
    if hasattr(sampler, "batched_count_greater_than"):
        sampler.batched_count_greater_than = without_ranks  # pyright: ignore[reportPrivateImportUsage]


def install_norms(model: torch.nn.Module) -> None:
    """In the place of vLLM's RMSNorm, not of its kinds for other families."""
    from vllm.model_executor.layers.layernorm import RMSNorm

    modules: list[Any] = [*model.modules()]
    for module in modules:
        is_plain = type(module) is RMSNorm and module.variance_size_override is None
        if is_plain and module.has_weight and module.hidden_size % VECTOR == 0:
            module._forward_method = partial(_norm, module, module._forward_method)


def _norm(
    module: Any, original: Callable[..., Any], x: torch.Tensor, residual: torch.Tensor | None = None
) -> Any:
    """As vLLM does it on accelerators: with a residual both tensors are written."""
    weight, epsilon = module.weight, module.variance_epsilon
    if x.dtype != weight.dtype:
        return original(x, residual)
    if residual is None:
        x = x.contiguous()  # its C knows no strides
        out = torch.empty_like(x)
        torch.ops._C.rms_norm(out, x, weight, epsilon)
        return out
    if not (x.is_contiguous() and residual.is_contiguous()):
        return original(x, residual)
    torch.ops._C.fused_add_rms_norm(x, residual, weight, epsilon)
    return x, residual
