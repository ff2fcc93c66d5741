"""Where a parameter stands in a distributed checkpoint of megatron-core: the keys that
`GPTModel.sharded_state_dict()` gives its tensors.

A tensor of the checkpoint is one of the whole model, whatever the layout. It stacks those of all layers, and of
all experts:

    decoder.layers.7.mlp.linear_fc2.weight [C, F]  ─▶  decoder.layers.mlp.linear_fc2.weight [L, C, F], at 7

A model whose layers differ is saved with the layer's number in the key instead. Whatever is not stacked is as
the only rank of a run has it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from services.trainer.megatron.parameters.mapping import EXPERT, LAYER
from services.trainer.megatron.parameters.rules import Shape
from trimaran.model.folder import ModelFacts

NORMS = (
    ("decoder.layers.input_layernorm.", "decoder.layers.self_attention.linear_qkv.layer_norm_"),
    ("decoder.layers.pre_mlp_layernorm.", "decoder.layers.mlp.linear_fc1.layer_norm_"),
)
"""TransformerEngine has a norm inside the matrix after it, and megatron-core saves all models by its names; but for
those of latent attention, whose names are those of the layers that saved them."""
LATENT_NORMS = (
    ("self_attention.q_layernorm.", "self_attention.linear_q_up_proj.layer_norm_"),
    ("self_attention.kv_layernorm.", "self_attention.linear_kv_up_proj.layer_norm_"),
    ("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"),
)
LINEAR = re.compile(r"(.*\.linear_\w+\.)weight")


class Slot(NamedTuple):
    """Example: Slot("decoder.layers.mlp.router.weight", at=(7,), stack=(32,))"""

    key: str
    at: tuple[int, ...] = ()
    """Indices of the layer, and of the expert."""
    stack: tuple[int, ...] = ()
    """How many there are of each."""

    def shape(self, own: Shape) -> Shape:
        """The shape of the checkpoint's tensor; `own`: of the parameter."""
        return (*self.stack, *own)


def slots(name: str, facts: ModelFacts) -> list[Slot]:
    """The slots of the parameter that `family_rules` calls `name`: under each key by which a model may ask for it.

    With experts the norm before them has two. It is in no matrix, so its key is its own with
    TransformerEngine; megatron-core's own layers have it under a dense model's. Where the first layers have no
    experts, layers differ.
    """
    at, stack = (), ()
    if layer := LAYER.match(name):
        at, stack = (int(layer[2]),), (facts.num_layers,)
        name = LAYER.sub("decoder.layers.", name)
    if expert := EXPERT.search(name):
        at, stack = (*at, int(expert[1])), (*stack, facts.num_experts)
        name = EXPERT.sub("experts.", name)
    found = [Slot(one, at, stack) for one in _keys(name, facts)]
    return list(map(numbered, found)) if facts.first_experts else found


def _keys(name: str, facts: ModelFacts) -> list[str]:
    key = name
    for own, fused in LATENT_NORMS if facts.latent else NORMS:
        key = key.replace(own, fused)
    both = facts.latent or (facts.num_experts and name.startswith(NORMS[1][0]))
    return [key, name] if both and key != name else [key]


def numbered(slot: Slot) -> Slot:
    """The same in a checkpoint of layers that differ."""
    if not slot.stack:
        return slot
    key = slot.key.replace("decoder.layers.", f"decoder.layers.{slot.at[0]}.", 1)
    return Slot(key, slot.at[1:], slot.stack[1:])


def extra_state(slot: Slot) -> str | None:
    """The key of what a linear layer saves besides its weight, for FP8; empty without. A model asks for it
    all the same."""
    linear = LINEAR.fullmatch(slot.key)
    if linear is None or not slot.key.startswith("decoder."):
        return None
    at, stack = (".".join(map(str, numbers)) for numbers in (slot.at or (0,), slot.stack or (1,)))
    return f"{linear[1]}_extra_state/shard_{at}_{stack}"
