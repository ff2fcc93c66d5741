"""Which adapters (services/trainer/megatron/parameters/lora.py) the parameters of a model have, and how each is split.

Without megatron-core, so that checkpoints are read where it is not loaded, or not yet.
"""

from __future__ import annotations

from services.trainer.megatron.parameters.family_rules import family_rules
from services.trainer.megatron.parameters.rules import (
    MappingRule,
    Rules,
    Shape,
    columns,
    rows,
    whole,
)
from trimaran.config import LoraSection
from trimaran.model.folder import ModelFacts

TARGETS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc2": ("down_proj",),
}
DECODER = "decoder."
"""A vision tower, whose layers may have the same names, has no adapters."""
SPLIT_BY_COLUMN = ("linear_proj", "linear_fc2")
"""Those that split their input. The others split their output."""


def trained_rules(facts: ModelFacts, lora: LoraSection | None) -> Rules:
    """The rules of all that a run may train, by the names that its checkpoints have."""
    rules = family_rules(facts)
    return {**rules, **adapter_rules(rules, lora)}


def is_adapter(name: str) -> bool:
    return ".adapters." in name


def adapter_rules(rules: Rules, lora: LoraSection | None) -> Rules:
    """The rules of the adapters to the parameters of `rules`; Hugging Face names are those of `peft` without
    its prefix."""
    if lora is None:
        return {}
    found: dict[str, MappingRule] = {}
    for name, rule in rules.items():
        layer, _, last = name.rpartition(".")
        kind = layer.rpartition(".")[2]
        is_target = kind in TARGETS and not rule.of_expert and name.startswith(DECODER)
        if last == "weight" and is_target:
            for target, hf_name, shape in zip(TARGETS[kind], rule.names, rule.shapes, strict=True):
                if target in lora.targets:
                    found |= _pair(f"{layer}.adapters.{target}", kind, hf_name, shape, lora.rank)
    return found


def _pair(name: str, kind: str, hf_name: str, shape: Shape, rank: int) -> dict[str, MappingRule]:
    prefix = hf_name.removesuffix(".weight")
    of_a = f"{prefix}.lora_A.weight", (rank, shape[1])
    of_b = f"{prefix}.lora_B.weight", (shape[0], rank)
    if kind in SPLIT_BY_COLUMN:
        return {f"{name}.a": columns(*of_a), f"{name}.b": whole(*of_b)}
    return {f"{name}.a": whole(*of_a), f"{name}.b": rows(*of_b)}
