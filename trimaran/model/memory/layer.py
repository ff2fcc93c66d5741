"""What one layer keeps from its forward pass until its backward pass, for each packed token.

Seen with `torch.autograd.graph.saved_tensors_hooks` on our layer spec (services/trainer/megatron/model.py).
With C channels of the model, Q of all heads, K of all key/value heads, H heads, F of the MLP, e bytes of a
number, r rows of attention for each packed token, L tokens of a sequence, T tensor-parallel ranks, and
S = T with sequence parallelism, else 1. Context-parallel ranks share it all: outside the attention the tokens,
inside it the heads.

    norms       e 2 C / S, their inputs; those of heads e (Q + K) / T
    inputs      e (2 C / S + Q / T), of the projections to queries, to the MLP and of the attention
    MLP         3 e F / T: both halves of the first product, and the input of the second
    attention   up to 256 tokens    r (e (Q + 2 K) + H L (4 + e where e < 4)) / T
                longer              r (e (2 Q + 2 K) + 4 H) / T

Where completions share their prompt in the attention (services/trainer/megatron/attention/segments.py) r is 1 and L the
prompt for the prompt's tokens, which also keep e 2 K / T, and the completions' keep what longer ones do.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimaran.config.parallel import ParallelLayout
from trimaran.model.memory.model import ModelSizes
from trimaran.model.memory.work import Work

FP32 = 4
EXPLICIT_LENGTH = 256
"""Tokens of the longest sequence whose matrix of attention weights is kept."""
MLP_TENSORS = 3
PAIR_COST_CPU = 1.25
"""`work.shares_prompt` says of what. Found by hand on one core, where both layouts take equally long: with prompts
of half to all of their completions' length."""
PAIR_COST = 8.0
"""The same on an accelerator, whose fused kernels keep scores out of its memory. An estimate from the bytes that
our attention moves and the operations that theirs does; not measured."""


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """For each packed token. Example: layer_bytes(model, layout, work).total"""

    norms: float
    inputs: float
    mlp: float
    attention: float

    @property
    def total(self) -> float:
        return self.norms + self.inputs + self.mlp + self.attention


def layer_bytes(
    model: ModelSizes,
    layout: ParallelLayout,
    work: Work,
    sequence_parallel: bool = False,
    on_host: bool = False,
) -> LayerBytes:
    """On one rank. `on_host`: it computes on a CPU."""
    hidden, size, tensor = model.facts.hidden_size, model.number_bytes, layout.tensor
    split = tensor if sequence_parallel else 1
    heads = (model.queries + model.keys) / tensor if model.facts.has_head_norms else 0
    context, pair_cost = layout.context, PAIR_COST_CPU if on_host else PAIR_COST
    return LayerBytes(
        norms=size
        * ((4 if model.facts.described.norms_behind else 2) * hidden / split + heads)
        / context,
        inputs=size * (2 * hidden / split + model.values / tensor + _latent(model)) / context,
        mlp=_mlp(model, tensor, layout.expert_tensor) / context,
        attention=_attention(model, work, tensor * context, pair_cost),
    )


def layer_input(
    model: ModelSizes, layout: ParallelLayout, sequence_parallel: bool = False
) -> float:
    """Bytes of one packed token: what a layer keeps that is computed again."""
    split = layout.tensor if sequence_parallel else 1
    return model.number_bytes * model.facts.hidden_size / split / layout.context


def attention_input(model: ModelSizes, layout: ParallelLayout) -> float:
    """Bytes of one packed token: queries, keys and values, from which the attention is computed again."""
    channels = model.queries / layout.tensor + 2 * max(
        model.keys / layout.tensor, model.facts.head_dim
    )
    return model.number_bytes * channels / layout.context


def _latent(model: ModelSizes) -> int:
    """Channels of latent attention's small vectors, before and behind their norms."""
    latent = model.facts.latent
    return 2 * (latent.queries_rank + latent.keys_rank) if latent else 0


def _mlp(model: ModelSizes, tensor: int, slices: int) -> float:
    """With experts, of tokens that are spread evenly over them: each chosen expert has a copy of the token
    and gives one back, its activation once more before it is weighted, and the router keeps float32
    scores and probabilities. Measured with four experts on one rank (tests/e2e/test_memory.py). Ranks that
    have `slices` of an expert each hold the tokens of all of them."""
    size = model.number_bytes
    if not model.facts.num_experts:
        return MLP_TENSORS * size * model.facts.intermediate_size / tensor
    inner = (MLP_TENSORS + 1) * size * model.facts.expert_size / tensor
    each = 2 * size * model.facts.hidden_size * slices + inner
    return model.facts.experts_per_token * each + 2 * FP32 * model.facts.num_experts


def _attention(model: ModelSizes, work: Work, ranks: int, pair_cost: float) -> float:
    """`ranks`: that divide the heads."""
    is_windowed = 0 < model.facts.window < work.sequence
    if is_windowed or not work.shares_prompt(pair_cost):
        return work.rows * _attention_row(model, work.sequence, ranks)
    of_prompt = work.prompt / work.group_tokens
    keys = 2 * model.number_bytes * max(model.keys / ranks, model.facts.head_dim)
    prompt = _attention_row(model, work.prompt, ranks) + keys
    completion = _attention_row(model, EXPLICIT_LENGTH + 1, ranks)
    return of_prompt * prompt + (1 - of_prompt) * completion


def _attention_row(model: ModelSizes, length: int, ranks: int) -> float:
    """With more ranks than key/value heads each of them has one."""
    size, heads = model.number_bytes, model.facts.num_heads / ranks
    queries, keys = model.queries / ranks, max(model.keys / ranks, model.facts.head_dim)
    if length > EXPLICIT_LENGTH:
        return size * 2 * (queries + keys) + FP32 * heads
    weights = heads * length * (FP32 + (size if size < FP32 else 0))
    return size * (queries + 2 * keys) + weights
