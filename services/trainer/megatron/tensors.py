"""The Hugging Face tensors of a whole model, from its architecture alone.

Every rank so knows what the others hold, in one order, without asking them.
"""

from __future__ import annotations

from collections.abc import Iterator

from services.trainer.megatron.architecture import Architecture
from services.trainer.model_files import EMBEDDING, HEAD

Shape = tuple[int, ...]


def tensor_shapes(architecture: Architecture) -> Iterator[tuple[str, Shape]]:
    """(name, shape): the embedding, layer by layer, the last norm, the head where it is untied."""
    facts = architecture.facts
    table = (facts.vocab_size, facts.hidden_size)
    yield EMBEDDING, table
    for layer in range(facts.num_layers):
        for name, shape in _layer_shapes(architecture):
            yield f"model.layers.{layer}.{name}", shape
    yield "model.norm.weight", (facts.hidden_size,)
    if not facts.tied:
        yield HEAD, table


def _layer_shapes(architecture: Architecture) -> Iterator[tuple[str, Shape]]:
    facts = architecture.facts
    hidden, inner = facts.hidden_size, facts.intermediate_size
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    yield "input_layernorm.weight", (hidden,)
    for letter, rows in (("q", queries), ("k", keys), ("v", keys)):
        yield f"self_attn.{letter}_proj.weight", (rows, hidden)
        if architecture.qkv_bias:
            yield f"self_attn.{letter}_proj.bias", (rows,)
    yield "self_attn.o_proj.weight", (hidden, queries)
    yield "post_attention_layernorm.weight", (hidden,)
    yield "mlp.gate_proj.weight", (inner, hidden)
    yield "mlp.up_proj.weight", (inner, hidden)
    yield "mlp.down_proj.weight", (hidden, inner)
