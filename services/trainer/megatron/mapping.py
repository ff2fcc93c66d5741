"""Hugging Face weights <-> this rank's megatron-core parameters, for Llama and Qwen2.

    megatron-core                      Hugging Face                          split over TP
    linear_qkv  [K * (R + 2) * D, C]   q_proj, k_proj, v_proj                by key/value head
    linear_fc1  [2 * F, C]             gate_proj, up_proj                    each by row
    linear_proj, linear_fc2            o_proj, down_proj                     by column
    word_embeddings, output_layer      embed_tokens, lm_head                 by row, padded
    norms                              norms                                 on every rank

K key/value heads, R query heads a key, D channels of a head, C of the model, F of the MLP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from services.trainer.megatron.architecture import Architecture
from trimaran.errors import InputError

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
WHOLE = {
    "embedding.word_embeddings.weight": (EMBEDDING, 0),
    "output_layer.weight": (HEAD, 0),
    "decoder.final_layernorm.weight": ("model.norm.weight", None),
}
IN_LAYER = {
    "input_layernorm.weight": ("input_layernorm.weight", None),
    "pre_mlp_layernorm.weight": ("post_attention_layernorm.weight", None),
    "self_attention.linear_proj.weight": ("self_attn.o_proj.weight", 1),
    "mlp.linear_fc2.weight": ("mlp.down_proj.weight", 1),
}
LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Rule:
    """How one parameter is made of Hugging Face tensors, and how it goes back.

    `shard(tensors, rank, size)` gives the rank's parameter; `join(shards)` the
    Hugging Face tensors in the order of `names`.
    """

    names: tuple[str, ...]
    shard: Callable[[Sequence[torch.Tensor], int, int], torch.Tensor]
    join: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    replicated: bool = False
    """Every rank holds the whole tensor."""


def rule_for(name: str, architecture: Architecture) -> Rule:
    """The rule of a parameter of our GPT model, by its megatron-core name."""
    if name in WHOLE:
        hf_name, dim = WHOLE[name]
        rows = architecture.facts.vocab_size if dim == 0 else None
        return _split_rule(hf_name, dim, rows)
    match = LAYER.fullmatch(name)
    assert match, name
    prefix, rest = f"model.layers.{match[1]}.", match[2]
    if rest in IN_LAYER:
        hf_name, dim = IN_LAYER[rest]
        return _split_rule(prefix + hf_name, dim, None)
    module, _, kind = rest.rpartition(".")
    if module == "self_attention.linear_qkv":
        return _qkv_rule([f"{prefix}self_attn.{x}_proj.{kind}" for x in "qkv"], architecture)
    assert module == "mlp.linear_fc1", name
    return _gated_rule([f"{prefix}mlp.{x}_proj.{kind}" for x in ("gate", "up")])


def _split_rule(hf_name: str, dim: int | None, rows: int | None) -> Rule:
    """`rows`: the real rows of a tensor that is padded to a multiple of the ranks."""

    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        (whole,) = tensors
        if dim is None:
            return whole
        if missing := -whole.shape[dim] % size:
            assert dim == 0
            whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
        return whole.chunk(size, dim)[rank]

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        whole = shards[0] if dim is None or len(shards) == 1 else torch.cat(list(shards), dim)
        return [whole if rows is None else whole[:rows]]

    return Rule((hf_name,), shard, join, replicated=dim is None)


def _gated_rule(names: Sequence[str]) -> Rule:
    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        halves = [one.chunk(2) for one in shards]
        if len(halves) == 1:
            return halves[0]
        return [torch.cat([half[i] for half in halves]) for i in range(2)]

    return Rule(tuple(names), shard, join)


def _qkv_rule(names: Sequence[str], architecture: Architecture) -> Rule:
    """megatron-core keeps each key/value head together with the query heads that read it."""
    kv_heads, dim = architecture.facts.num_kv_heads, architecture.facts.head_dim
    queries = architecture.facts.num_heads // kv_heads

    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        blocks = torch.cat([tensor.unflatten(0, (kv_heads, -1)) for tensor in tensors], dim=1)
        return blocks.chunk(size)[rank].flatten(0, 1)

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        whole = shards[0] if len(shards) == 1 else torch.cat(list(shards))
        blocks = whole.unflatten(0, (kv_heads, -1))
        return [x.flatten(0, 1) for x in blocks.split([queries * dim, dim, dim], dim=1)]

    return Rule(tuple(names), shard, join)


def parameters(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """By megatron-core name, without the prefixes of wrappers."""
    for name, parameter in model.named_parameters():
        yield re.sub(r"^(module\.)+", "", name), parameter


def mark_shards(model: torch.nn.Module, architecture: Architecture) -> None:
    """Say which parameters are shards: else the gradient's norm counts only those of rank 0.

    megatron-core does so itself only while it initialises weights, which we load instead.
    """
    for name, parameter in parameters(model):
        parameter.tensor_model_parallel = not rule_for(name, architecture).replicated  # type: ignore[attr-defined]


def load_weights(
    model: torch.nn.Module,
    architecture: Architecture,
    tensors: Mapping[str, torch.Tensor],
    rank: int,
    size: int,
) -> None:
    """Fill this rank's parameters, and their fp32 main copies where the optimizer made them."""
    for name, parameter in parameters(model):
        rule = rule_for(name, architecture)
        try:
            shard = rule.shard([tensors[hf_name] for hf_name in rule.names], rank, size)
        except KeyError as missing:
            raise InputError(f"{missing.args[0]}: missing from the model's safetensors") from None
        if shard.shape != parameter.shape:
            raise InputError(
                f"{rule.names[0]}: shape does not fit config.json"
                f" (have {tuple(shard.shape)}, need {tuple(parameter.shape)})"
            )
        with torch.no_grad():
            parameter.copy_(shard)
            if (main := getattr(parameter, "main_param", None)) is not None:
                main.copy_(shard)


def export_weights(
    model: torch.nn.Module,
    architecture: Architecture,
    group: dist.ProcessGroup | None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, whole tensor), one parameter at a time.

    `group`: the tensor-parallel group, whose ranks must all iterate; None for one rank.
    Tensors may be views of live parameters: copy them before the next update.
    """
    for name, parameter in parameters(model):
        rule = rule_for(name, architecture)
        shards = [parameter.detach()]
        if group is not None and not rule.replicated:
            shards = [torch.empty_like(parameter) for _ in range(dist.get_world_size(group))]
            dist.all_gather(shards, parameter.detach().contiguous(), group=group)
        yield from zip(rule.names, rule.join(shards), strict=True)
