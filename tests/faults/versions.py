"""The weights of every version, as a pure function of a seed and a step.

The trainers make their versions with it and the driver, by itself, knows what
each version must be. Few elements change from step to step, so that a delta is
the smaller way; every `FULL_EVERY` steps all of them do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import xxhash

from trimaran.model.folder import ModelFacts

FULL_EVERY = 5
CHANGED_SHARE = 0.01

Shapes = Mapping[str, tuple[int, ...]]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def llama_shapes(facts: ModelFacts) -> Shapes:
    """Hugging Face names and shapes of a Llama with these facts, embeddings tied."""
    hidden, width = facts.hidden_size, facts.intermediate_size
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    layer = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }
    layers = {
        f"model.layers.{number}.{name}": shape
        for number in range(facts.num_layers)
        for name, shape in layer.items()
    }
    return {
        "model.embed_tokens.weight": (facts.vocab_size, hidden),
        **layers,
        "model.norm.weight": (hidden,),
    }


@dataclass(slots=True)
class Weights:
    """Those of one step; `advance` goes on to the next. Names are in alphabetical order."""

    tensors: dict[str, torch.Tensor]
    seed: int
    step: int = 0

    @classmethod
    def first(cls, shapes: Shapes, dtype: torch.dtype, seed: int) -> Weights:
        names = sorted(shapes)
        weights = cls({name: torch.empty(shapes[name], dtype=dtype) for name in names}, seed)
        weights._draw()
        return weights

    def advance(self, step: int) -> None:
        while self.step < step:
            self.step += 1
            self._draw()

    def _draw(self) -> None:
        dice = torch.Generator().manual_seed(self.seed * 100_003 + self.step)
        for tensor in self.tensors.values():
            if self.step % FULL_EVERY == 0:
                # Of the size that a model's own weights have: its logits stay finite.
                values = torch.randn(tensor.shape, generator=dice)
                tensor.copy_(1 + values / 10 if tensor.ndim == 1 else values / 8)
                continue
            count = max(1, int(tensor.numel() * CHANGED_SHARE))
            places = torch.randint(tensor.numel(), (count,), generator=dice)
            values = torch.randn(count, generator=dice) / 8
            tensor.view(-1)[places] = values.to(tensor.dtype)

    def checksum(self) -> int:
        return checksum(self.tensors)


def checksum(tensors: Mapping[str, torch.Tensor]) -> int:
    """31 bits over all bytes, in the order of the names: it fits a token."""
    digest = xxhash.xxh3_64()
    for _, tensor in sorted(tensors.items()):
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.intdigest() & 0x7FFF_FFFF
