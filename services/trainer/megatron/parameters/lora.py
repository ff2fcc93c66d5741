"""Low-rank adapters (LoRA, arXiv 2106.09685) beside the linear layers of megatron-core's model.

Each Hugging Face matrix W [out, in] that is a target has A [r, in] and B [out, r] of its own, also where
megatron-core keeps several in one parameter:

    y = W x + scale B A x,    scale = alpha / r

    layer        targets                    A                       B
    linear_qkv   q_proj, k_proj, v_proj     on every rank           split by row, as W is
    linear_fc1   gate_proj, up_proj         on every rank           split by row, as W is
    linear_proj  o_proj                     split by column, as W   on every rank
    linear_fc2   down_proj                  split by column, as W   on every rank

Only [tokens, r] travels between tensor-parallel ranks.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import tensor_parallel
from megatron.core.transformer import TransformerConfig

from services.trainer.megatron.parameters.adapter_rules import DECODER, SPLIT_BY_COLUMN, TARGETS
from services.trainer.megatron.parameters.rules import Rules
from trimaran.config import LoraSection


def initial_adapters(rules: Rules, seed: int) -> dict[str, torch.Tensor]:
    """By Hugging Face name, float32: A uniform within 1 / sqrt(in), as `peft` draws it, and B zero, so
    that the model begins as it was. The same in every layout."""
    found: dict[str, torch.Tensor] = {}
    for rule in rules.values():
        ((name, shape),) = zip(rule.names, rule.shapes, strict=True)
        found[name] = torch.zeros(shape)
        if name.endswith(".lora_A.weight"):
            generator = torch.Generator()
            generator.manual_seed(random.Random(f"{seed}/{name}").getrandbits(62))
            bound = 1 / math.sqrt(shape[1])
            found[name].uniform_(-bound, bound, generator=generator)
    return found


PART_ON_HOST, PART = 1 << 16, 1 << 24
"""Elements of a matrix at a time: 256 KiB, which a core's cache holds, and 64 MiB."""


class Adapter(torch.nn.Module):
    """This rank's part of A and B for one matrix."""

    def __init__(self, inputs: int, outputs: int, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.empty(rank, inputs, dtype=dtype))
        self.b = torch.nn.Parameter(torch.empty(outputs, rank, dtype=dtype))


def product(a_rI: torch.Tensor, b_Or: torch.Tensor) -> torch.Tensor:
    """B A in float32 [O, I]. Each number is the sum over r in order, so that it is the same bits on every
    rank, whatever part of the matrix that has: a matrix product adds in an order that follows from its shape."""
    a_rI, b_rO = a_rI.float(), b_Or.float().t().contiguous()
    found = a_rI.new_zeros(b_rO.shape[1], a_rI.shape[1])
    num = max((PART_ON_HOST if a_rI.is_cpu else PART) // a_rI.shape[1], 1)
    for part, rows in zip(found.split(num), b_rO.split(num, dim=1), strict=True):
        term = torch.empty_like(part)
        for a_I, b_O in zip(a_rI, rows, strict=True):
            # Not `addcmul`: that may round once or twice.
            part += torch.mul(b_O[:, None], a_I, out=term)
    return found


class Adapters(torch.nn.ModuleDict):
    """Those of one layer of megatron-core; adds to the layer's output by a hook."""

    def __init__(self, kind: str, linear: Any, lora: LoraSection, config: TransformerConfig):
        super().__init__()
        outputs, inputs = linear.weight.shape
        self._targets, self._is_row = TARGETS[kind], kind in SPLIT_BY_COLUMN
        self._heads = _heads(config) if kind == "linear_qkv" else 1
        self._rows = _rows(kind, outputs, config)
        self._scale, self._sequence_parallel = lora.alpha / lora.rank, config.sequence_parallel
        self.is_on = True
        for target, length in zip(self._targets, self._rows, strict=True):
            if target in lora.targets:
                self[target] = one = Adapter(inputs, length, lora.rank, linear.weight.dtype)
                # With sequence parallelism a rank sees its share of the tokens only:
                # finalize_model_grads sums what is marked so.
                shared: Any = one.b if self._is_row else one.a
                shared.sequence_parallel = config.sequence_parallel
        self._rank = lora.rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's input -> what is added to its output."""
        inner = F.linear(x, torch.cat([one.a for one in self._own()])) * self._scale
        parts = dict(zip(self, self._exchange(inner).split(self._rank, dim=-1), strict=True))
        return self._fuse(
            [
                F.linear(parts[target], self._adapter(target).b) if target in parts else None
                for target in self._targets
            ]
        )

    def _exchange(self, inner: torch.Tensor) -> torch.Tensor:
        """[tokens, ranks of all targets]: to all tokens with B's part, or summed over the inputs."""
        if self._is_row:
            if self._sequence_parallel:
                return tensor_parallel.reduce_scatter_to_sequence_parallel_region(inner)
            return tensor_parallel.reduce_from_tensor_model_parallel_region(inner)
        if self._sequence_parallel:
            return tensor_parallel.gather_from_sequence_parallel_region(inner)
        return tensor_parallel.copy_to_tensor_model_parallel_region(inner)

    @torch.no_grad()
    def delta(self) -> torch.Tensor:
        """scale B A as the layer's weight has its rows, float32 [out, in]."""
        found = {
            target: product(self._adapter(target).a, self._adapter(target).b).t() for target in self
        }
        return self._fuse([found.get(one) for one in self._targets]).t() * self._scale

    def _fuse(self, parts: list[torch.Tensor | None]) -> torch.Tensor:
        """Joins what each target gives, [..., its rows] -> [..., rows of the layer]: megatron-core keeps a key/value
        head with the queries that read it."""
        given = next(part for part in parts if part is not None)
        whole_parts = [
            given.new_zeros(*given.shape[:-1], length) if part is None else part
            for part, length in zip(parts, self._rows, strict=True)
        ]
        heads = [part.unflatten(-1, (self._heads, -1)) for part in whole_parts]
        return torch.cat(heads, dim=-1).flatten(-2)

    def _own(self) -> Iterator[Adapter]:
        return (self._adapter(target) for target in self)

    def _adapter(self, target: str) -> Adapter:
        one: Any = self[target]
        return one


def _heads(config: TransformerConfig) -> int:
    """Key/value heads of this rank."""
    groups = config.num_query_groups
    assert groups is not None
    return groups // config.tensor_model_parallel_size


def _rows(kind: str, outputs: int, config: TransformerConfig) -> list[int]:
    """The adapters of each target, on this rank."""
    if kind == "linear_qkv":
        keys = _heads(config) * int(config.kv_channels or 0)
        return [outputs - 2 * keys, keys, keys]
    return [outputs // len(TARGETS[kind])] * len(TARGETS[kind])


def attach(
    model: torch.nn.Module, lora: LoraSection, config: TransformerConfig
) -> dict[int, Adapters]:
    """Adapters for all layers of `model` that have targets; by the id of the layer's weight."""
    found: dict[int, Adapters] = {}
    for name, layer in list(model.named_modules()):
        kind = name.rpartition(".")[2]
        is_target = kind in TARGETS and ".experts." not in name and name.startswith(DECODER)
        if is_target and set(TARGETS[kind]) & set(lora.targets):
            linear: Any = layer
            linear.adapters = found[id(linear.weight)] = Adapters(kind, linear, lora, config)
            linear.register_forward_hook(_add)
    return found


def _add(layer: Any, inputs: tuple[torch.Tensor, ...], output: Any) -> Any:
    value, bias = output
    return (value + layer.adapters(inputs[0]) if layer.adapters.is_on else value), bias


@contextmanager
def switched_off(adapters: Iterable[Adapters]) -> Iterator[None]:
    """Inside, the model computes as it did before it was trained."""
    adapters = tuple(adapters)
    for one in adapters:
        one.is_on = False
    try:
        yield
    finally:
        for one in adapters:
            one.is_on = True
