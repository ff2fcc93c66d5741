"""What we need to know about a Hugging Face model folder, read from its config.json; of Qwen2.5-VL, also from
the names of its tensors.

No weights are read and no torch is loaded, so the checks run before anything starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, cast

from trimaran.choices import FAMILIES
from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.model.families.family import Family, Feature
from trimaran.model.tensor_names import read_names
from trimaran.model.vision_tower import VisionFacts, num_tower_parameters, vision_facts

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
LANGUAGE, VISION = "model.language_model.", "model.visual."
"""Before the names of tensors of the language model, and of the tower, in folders with nested names. Those of
Qwen2.5-VL as its makers publish them have "model." and "visual."; folders that were saved with the names of
transformers' modules have these."""
Shape = tuple[int, ...]
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""The first behind the prefix of the language model."""


@dataclass(frozen=True, slots=True)
class LatentFacts:
    """Sizes of latent attention. Example: DeepSeek-V3 has LatentFacts(1536, 512, plain=128, turned=64, values=128)."""

    queries_rank: int
    """Channels out of which all heads' queries come; 0 where they come straight from the layer's input."""
    keys_rank: int
    """Channels out of which keys and values come, but for the turned channels of keys."""
    plain: int
    """Channels of a head's queries and keys without a position."""
    turned: int
    """Those with one, behind the plain ones; all heads have the same of keys."""
    values: int
    """Channels of a head's values."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Example: SmolLM2-135M is ModelFacts("llama", 30, 576, 1536, 9, 3, 64, 49152, True, 8192)."""

    family: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied: bool
    """The output layer is the embedding."""
    max_positions: int
    num_experts: int = 0
    """Experts of each layer; none where it has one MLP of `intermediate_size`."""
    experts_per_token: int = 0
    expert_size: int = 0
    """The intermediate size of an expert."""
    shared_expert_size: int = 0
    """Size of the expert that every token passes; 0 for none."""
    vision: VisionFacts | None = None
    """The vision tower in front of the language model, to which all other facts belong."""
    nested_names: bool = False
    """Whether the folder's tensors have the prefixes `LANGUAGE` and `VISION`, also where the family's need not."""
    switches: tuple[str, ...] = ()
    """The keys of config.json that are true, of those by which models of the family differ."""
    first_experts: int = 0
    """The first layer with experts; those before it have one MLP."""
    latent: LatentFacts | None = None
    window: int = 0
    """The last tokens, itself included, to which a token attends; 0 for all."""
    full_layers: tuple[int, ...] = ()
    """The layers without a window, where others have one."""

    @property
    def described(self) -> Family:
        return FAMILIES.load(self.family)  # type: ignore[no-any-return]

    @property
    def has_biases(self) -> bool:
        return self._has(self.described.biases)

    @property
    def has_head_norms(self) -> bool:
        return self._has(self.described.head_norms)

    def _has(self, feature: Feature) -> bool:
        return feature if isinstance(feature, bool) else feature in self.switches

    @property
    def language_prefix(self) -> str:
        """Before the names of the language model's tensors, but the output layer's."""
        return LANGUAGE if self._is_nested else "model."

    @property
    def vision_prefix(self) -> str:
        """Before those of the tower's."""
        return VISION if self._is_nested else "visual."

    @property
    def _is_nested(self) -> bool:
        return self.nested_names or self.described.nested_names

    @property
    def choice_bytes(self) -> int:
        """Bytes of a token's experts in one layer, as `types.Completion.experts` has them."""
        return self.experts_per_token * (2 if self.num_experts > 256 else 1)

    @property
    def stacks_experts(self) -> bool:
        """One tensor holds the matrices of all experts of a layer."""
        return bool((experts := self.described.experts) and experts.stacked)

    @property
    def tower_parameters(self) -> int:
        """All of the vision tower's; 0 without one."""
        return num_tower_parameters(self.vision, self.hidden_size) if self.vision else 0

    def has_experts(self, layer: int) -> bool:
        return bool(self.num_experts) and layer >= self.first_experts

    @property
    def projections(self) -> Mapping[str, Shape]:
        """The matrices of attention, [outputs, inputs], by their names in a layer."""
        hidden, queries = self.hidden_size, self.num_heads * self.head_dim
        if (latent := self.latent) is None:
            keys = self.num_kv_heads * self.head_dim
            return {
                "q_proj": (queries, hidden),
                "k_proj": (keys, hidden),
                "v_proj": (keys, hidden),
                "o_proj": (hidden, queries),
            }
        rank = latent.queries_rank
        found = {"q_a_proj": (rank, hidden), "q_b_proj": (queries, rank)}
        return {
            **(found if rank else {"q_proj": (queries, hidden)}),
            "kv_a_proj_with_mqa": (latent.keys_rank + latent.turned, hidden),
            "kv_b_proj": (self.num_heads * (latent.plain + latent.values), latent.keys_rank),
            "o_proj": (hidden, self.num_heads * latent.values),
        }

    @property
    def attention_parameters(self) -> int:
        """Parameters of the matrices of one layer's attention."""
        return sum(map(prod, self.projections.values()))

    def used_parameters(self, layer: int) -> int:
        """Parameters of the layer's matrices that a token passes."""
        return self._layer_parameters(layer, self.experts_per_token)

    def _layer_parameters(self, layer: int, num_experts: int) -> int:
        inner = self.intermediate_size
        if self.has_experts(layer):
            inner = num_experts * self.expert_size + self.shared_expert_size
        router = self.num_experts if self.has_experts(layer) else 0
        return self.attention_parameters + self.hidden_size * (3 * inner + router)

    @property
    def num_parameters(self) -> int:
        """Parameters of the matrices; norms and biases are less than a thousandth of a model in use. With all of
        the vision tower."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied else 2)
        layers = sum(self._layer_parameters(n, self.num_experts) for n in range(self.num_layers))
        return layers + embeddings + self.tower_parameters


def read_model_folder(path: Path, is_whole: bool = True) -> ModelFacts:
    """Raises InputError when `path` is not a model folder or its family is not supported. `is_whole`: False
    where config.json is enough, as for a plan before the download."""
    if not path.is_dir():
        raise InputError(
            f"model.path: {path} is not a folder; give a Hugging Face model folder"
            " (config.json, tokenizer, safetensors)"
        )
    config = _read_config(path / "config.json")
    family = config.get("model_type")
    if family not in FAMILIES.names():
        raise InputError(
            f"model.path: {path} holds a model of the family {family!r};"
            f" supported are {', '.join(FAMILIES.names())}"
        )
    for names in (WEIGHTS, TOKENIZERS):
        if is_whole and not any((path / name).is_file() for name in names):
            raise InputError(f"model.path: {path} lacks {' or '.join(names)}")
    if language_config(config).get("use_sliding_window"):
        raise InputError(
            f"model.path: {path} uses sliding-window attention, which is not supported;"
            " set use_sliding_window to false in its config.json if it was trained without"
        )
    facts = _facts(config, path / "config.json")
    if facts.vision and not facts.described.nested_names and has_weights(path):
        nested = any(name.startswith((LANGUAGE, VISION)) for name in read_names(path))
        facts = replace(facts, nested_names=nested)
    return facts


def has_weights(path: Path) -> bool:
    return any((path / name).is_file() for name in WEIGHTS)


def language_config(config: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of the language model: vision-language folders have it in a part of its own;
    older ones of Qwen2.5-VL beside all the rest."""
    return {**config, **config.get("text_config", {})}


def check_tensor_parallel(facts: ModelFacts, size: int, key: str) -> None:
    """Raises InputError unless `size` divides the model's heads; `key` is where it was set."""
    for noun, count in (("attention heads", facts.num_heads), ("KV heads", facts.num_kv_heads)):
        if count % size:
            allowed = [n for n in range(1, facts.num_kv_heads + 1) if _divides(facts, n)]
            raise InputError(
                f"{key}: {size} does not divide the model's {count} {noun};"
                f" this model can be split by {', '.join(map(str, allowed))}"
            )


def _divides(facts: ModelFacts, size: int) -> bool:
    return facts.num_heads % size == 0 and facts.num_kv_heads % size == 0


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(
            f"model.path: {path} cannot be read", error, "give a Hugging Face model folder"
        ) from None
    except ValueError:
        raise InputError(f"model.path: {path} is not JSON; is the download complete?") from None
    if not isinstance(config, dict):
        raise InputError(f"model.path: {path} is not a model's configuration")
    return cast(dict[str, Any], config)


def _expert_facts(config: dict[str, Any]) -> dict[str, Any]:
    named = map(config.get, ("num_experts", "num_local_experts", "n_routed_experts"))
    num_experts = int(next(filter(None, named), 0))
    if not num_experts:
        return {}
    size = int(config["moe_intermediate_size"])
    shared = config.get("shared_expert_intermediate_size")
    return {
        "num_experts": num_experts,
        "experts_per_token": int(config["num_experts_per_tok"]),
        "expert_size": size,
        "shared_expert_size": int(shared or size * config.get("n_shared_experts", 0)),
        "first_experts": int(config.get("first_k_dense_replace", 0)),
    }


def _window_facts(config: dict[str, Any]) -> dict[str, Any]:
    """Layers by their types, or each n-th without a window."""
    kinds, every = config.get("layer_types"), config.get("sliding_window_pattern")
    layers = range(_size(config, "num_hidden_layers"))
    full = tuple(layer for layer in layers if every and not (layer + 1) % int(every))
    if kinds:
        full = tuple(layer for layer in layers if kinds[layer] == "full_attention")
    return {"window": int(config.get("sliding_window") or 0), "full_layers": full}


def _attention_facts(config: dict[str, Any], family: Family, hidden_size: int) -> dict[str, Any]:
    num_heads = _size(config, "num_attention_heads")
    if not family.latent:
        return {
            "num_heads": num_heads,
            "num_kv_heads": int(config.get("num_key_value_heads") or num_heads),
            "head_dim": int(config.get("head_dim") or hidden_size // num_heads),
        }
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    latent = LatentFacts(int(config["q_lora_rank"] or 0), *(_size(config, name) for name in names))
    return {
        "num_heads": num_heads,
        "num_kv_heads": num_heads,
        "head_dim": latent.plain + latent.turned,
        "latent": latent,
    }


def _vision(config: dict[str, Any], hidden_size: int) -> VisionFacts | None:
    tower = config.get("vision_config")
    if tower is None:
        return None
    if (out := int(tower.get("out_hidden_size", hidden_size))) != hidden_size:
        raise ValueError(f"the vision tower gives {out} channels, the model has {hidden_size}")
    return vision_facts(tower, int(config["image_token_id"]))


def _size(config: dict[str, Any], name: str) -> int:
    if (size := int(config[name])) < 1:
        raise ValueError(f"{name} is {size}")
    return size


def _facts(whole: dict[str, Any], path: Path) -> ModelFacts:
    config = language_config(whole)
    try:
        family: Family = FAMILIES.load(whole["model_type"])
        hidden_size = _size(config, "hidden_size")
        return ModelFacts(
            family=whole["model_type"],
            num_layers=_size(config, "num_hidden_layers"),
            hidden_size=hidden_size,
            intermediate_size=_size(config, "intermediate_size"),
            vocab_size=_size(config, "vocab_size"),
            # transformers ties by the top level, where a folder has it there.
            tied=bool((config | whole).get("tie_word_embeddings", family.tied)),
            max_positions=_size(config, "max_position_embeddings"),
            vision=_vision(whole, hidden_size),
            **(_window_facts(config) if family.window else {}),
            switches=tuple(key for key in family.switches if config.get(key)),
            **_attention_facts(config, family, hidden_size),
            **_expert_facts(config),
        )
    except KeyError as error:
        raise InputError(f"model.path: {path} lacks {error.args[0]}") from None
    except (ValueError, TypeError, ZeroDivisionError) as error:
        raise InputError(f"model.path: {path} holds sizes that are none: {error}") from None
