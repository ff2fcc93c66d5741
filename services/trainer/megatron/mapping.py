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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from services.trainer.megatron.architecture import Architecture
from services.trainer.model_files import EMBEDDING, HEAD
from services.weight_sync.data.snapshot import Part
from trimaran.errors import InputError

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


class Share(NamedTuple):
    """Elements start..stop of a Hugging Face tensor, along the dimension that is split.

    Example:
        Share(0, 288, weight)  # rank 0 of 2 holds the first 288 of 576 rows
    """

    start: int
    stop: int
    tensor: torch.Tensor


@dataclass(frozen=True, slots=True)
class MappingRule:
    """How one parameter is made of Hugging Face tensors, and how it goes back.

    `shard(tensors, rank, size)` gives the rank's parameter; `shares(parameter, rank, size)` the
    rank's share of each Hugging Face tensor, `join(shards)` all of them whole, both in the order
    of `names`.

    Example: rule_for("decoder.layers.0.mlp.linear_fc1.weight", architecture).names ==
    ("model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight")
    """

    names: tuple[str, ...]
    shard: Callable[[Sequence[torch.Tensor], int, int], torch.Tensor]
    shares: Callable[[torch.Tensor, int, int], Sequence[Share]]
    join: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    replicated: bool = False
    """Every rank holds the whole tensor."""


def rule_for(name: str, architecture: Architecture) -> MappingRule:
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


def _split_rule(hf_name: str, dim: int | None, rows: int | None) -> MappingRule:
    """`rows`: the real rows of a tensor that is padded to a multiple of the ranks."""

    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        (whole,) = tensors
        if dim is None:
            return whole
        if missing := -whole.shape[dim] % size:
            assert dim == 0
            whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
        return whole.chunk(size, dim)[rank]

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        if dim is None:
            return [Share(0, len(parameter), parameter)]
        length = parameter.shape[dim]
        end = length * size if rows is None else rows
        start, stop = min(rank * length, end), min((rank + 1) * length, end)
        return [Share(start, stop, parameter.narrow(dim, 0, stop - start))]

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        whole = shards[0] if dim is None or len(shards) == 1 else torch.cat(list(shards), dim)
        return [whole if rows is None else whole[:rows]]

    return MappingRule((hf_name,), shard, shares, join, replicated=dim is None)


def _gated_rule(names: Sequence[str]) -> MappingRule:
    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        return [_rows(half, rank) for half in parameter.chunk(2)]

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        halves = [one.chunk(2) for one in shards]
        if len(halves) == 1:
            return halves[0]
        return [torch.cat([half[i] for half in halves]) for i in range(2)]

    return MappingRule(tuple(names), shard, shares, join)


def _qkv_rule(names: Sequence[str], architecture: Architecture) -> MappingRule:
    """megatron-core keeps each key/value head together with the query heads that read it."""
    kv_heads, dim = architecture.facts.num_kv_heads, architecture.facts.head_dim
    queries = architecture.facts.num_heads // kv_heads

    def shard(tensors: Sequence[torch.Tensor], rank: int, size: int) -> torch.Tensor:
        blocks = torch.cat([tensor.unflatten(0, (kv_heads, -1)) for tensor in tensors], dim=1)
        return blocks.chunk(size)[rank].flatten(0, 1)

    def separate(parameter: torch.Tensor) -> Sequence[torch.Tensor]:
        blocks = parameter.unflatten(0, (-1, (queries + 2) * dim))
        return [x.flatten(0, 1) for x in blocks.split([queries * dim, dim, dim], dim=1)]

    def shares(parameter: torch.Tensor, rank: int, size: int) -> Sequence[Share]:
        return [_rows(tensor, rank) for tensor in separate(parameter)]

    def join(shards: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return separate(shards[0] if len(shards) == 1 else torch.cat(list(shards)))

    return MappingRule(tuple(names), shard, shares, join)


def _rows(tensor: torch.Tensor, rank: int) -> Share:
    """Of a tensor of which every rank has equally many rows."""
    return Share(rank * len(tensor), (rank + 1) * len(tensor), tensor)


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


def list_parts(
    named_parameters: Iterable[tuple[str, torch.Tensor]],
    architecture: Architecture,
    rank: int,
    size: int,
) -> Iterator[Part]:
    """What this tensor-parallel rank has of each Hugging Face tensor.

    What every rank has whole is rank 0's, so that the parts of all ranks hold each element once.
    Tensors may be views of live parameters.
    """
    for name, parameter in named_parameters:
        rule = rule_for(name, architecture)
        if rule.replicated and rank:
            continue
        for hf_name, share in zip(rule.names, rule.shares(parameter, rank, size), strict=True):
            if share.start < share.stop:  # else all of it is padding
                yield Part(hf_name, *share)


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
