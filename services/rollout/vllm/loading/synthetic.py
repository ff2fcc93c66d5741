"""Weights that are not sent: made in vLLM's workers, to find out what vLLM computes with.

Every tensor is a window of one small buffer of random numbers: element (i, j) is number
`offset + i + j`, and the offset depends on the tensor's name. So even those of a 70B model take no
memory, and they go the way of a version: `load_weights`, tensor by tensor, on the host.

`GAUGES` are changes after which a Llama computes the same function: a factor here and its inverse
there. The factors are powers of two, so not even a rounding differs. All of them together change
every tensor.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from trimaran.model.folder import WEIGHTS

NUM_OFFSETS = 1 << 16
EMBEDDING = "embed_tokens.weight"

GAUGES: Mapping[str, Mapping[str, int]] = {
    "residual stream": {
        EMBEDDING: 1,
        "o_proj.weight": 1,
        "down_proj.weight": 1,
        "norm.weight": -1,
        "lm_head.weight": 1,
    },
    "attention's norm": {
        "input_layernorm.weight": 26,
        "q_proj.weight": -26,
        "k_proj.weight": -26,
        "v_proj.weight": -26,
        "q_a_proj.weight": -26,
        "kv_a_proj_with_mqa.weight": -26,
    },
    "mlp's norm": {
        "post_attention_layernorm.weight": 26,
        "gate_proj.weight": -26,
        "up_proj.weight": -26,
        "gate.weight": -26,
    },
    "queries and keys": {
        "q_proj.weight": 10,
        "q_proj.bias": 10,
        "k_proj.weight": -10,
        "k_proj.bias": -10,
    },
    "norms of queries and keys": {"q_norm.weight": 10, "k_norm.weight": -10},
    "values": {"v_proj.weight": 18, "v_proj.bias": 18, "o_proj.weight": -18},
    "latent queries": {"q_a_layernorm.weight": 10, "q_b_proj.weight": -10},
    "latent keys and values": {"kv_a_layernorm.weight": 10, "kv_b_proj.weight": -10},
    "mlp's channels": {"up_proj.weight": 18, "down_proj.weight": -18},
}
"""Gauge -> kind of tensor -> exponent of two. The large ones make also a layer that still computes
with vLLM's dummy weights, which are a thousandth of ours, stand out."""

NEGATED = "attention's norm"
"""Where this gauge is multiplied in, its tensors are negated as well: where queries and keys have
norms of their own, these hide every other factor."""

KINDS = frozenset(kind for exponents in GAUGES.values() for kind in exponents) | {
    "gate.e_score_correction_bias"
}
"""A tensor's kind is the end of its name: `q_proj.weight` of `model.layers.3.self_attn.q_proj.weight`.
`gate.weight` is a router's; its bias is in no gauge."""

STREAM = 1024.0
"""Standard deviation of the embedding, and so of what each layer adds to the stream. Beside its square
no epsilon of a norm counts, not even in float32: one rounding that differs would grow from layer to
layer."""
GAINS = {
    "q_proj.weight": 1.5,
    "k_proj.weight": 1.5,
    "o_proj.weight": STREAM,
    "down_proj.weight": STREAM,
    # The output layer may be the embedding. Logits then have a standard deviation of 3.
    "norm.weight": 3 / STREAM,
}
"""By kind, of what leaves a layer whose inputs have a standard deviation of 1; 1 for the others."""


@dataclass(frozen=True, slots=True)
class SyntheticVersion:
    """Example: SyntheticVersion({"model.norm.weight": (576,)}, "bfloat16", {"values": 1})"""

    shapes: Mapping[str, tuple[int, ...]]
    """By Hugging Face name."""
    dtype: str
    """As torch calls it."""
    gauges: Mapping[str, int]
    """Gauge -> how often its factors are multiplied in; -1 divides by them."""
    shifted: str = EMBEDDING
    """Kind of tensor."""
    shift: int = 0
    """The tensors of that kind begin so many numbers later. So a token has the embedding that the
    one so many places behind it has without a shift."""

    def description(self) -> dict[str, Any]:
        """Plain values: what `synthetic_tensors` needs."""
        return asdict(self)


def gauges_of(shapes: Collection[str]) -> list[str]:
    """Those that leave the function of a model with these tensors as it is."""
    present = {kind_of(name) for name in shapes}
    without = set[str]()
    if "q_norm.weight" in present or "k_proj.weight" not in present:
        # Behind a norm, queries have the same length whatever was multiplied in before it.
        without.add("queries and keys")
    if "v_proj.weight" not in present:
        without.add("values")
    return [gauge for gauge in GAUGES if gauge not in without]


def is_of_tower(name: str) -> bool:
    """Whether the tensor belongs to a vision tower."""
    return "visual" in name.split(".")


def kind_of(name: str) -> str:
    return ".".join(name.split(".")[-2:])


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors in a model folder, from the headers of its safetensors."""
    whole, index = (folder / name for name in WEIGHTS)
    parts = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else ()
    shapes: dict[str, tuple[int, ...]] = {}
    for name in sorted(parts) or [whole.name]:
        with safe_open(folder / name, framework="pt") as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  no mapping
    return {name: shape for name, shape in shapes.items() if not name.endswith(".inv_freq")}


def synthetic_tensors(description: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """(Hugging Face name, tensor of the full shape), on the host, only to be read.

    `description` is `SyntheticVersion.description()`.
    """
    version = SyntheticVersion(**description)
    longest = max(sum(shape) for shape in version.shapes.values()) + NUM_OFFSETS + version.shift
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(longest, generator=generator, device="cpu")
    scaled: dict[float, torch.Tensor] = {}
    for name, shape in version.shapes.items():
        scale = _scale(version, name, tuple(shape))
        if scale not in scaled:
            scaled[scale] = (scale * numbers).to(getattr(torch, version.dtype))
        offset = zlib.crc32(name.encode()) % NUM_OFFSETS
        if kind_of(name) == version.shifted:
            offset += version.shift
        yield name, scaled[scale].as_strided(shape, (1,) * len(shape), offset)


def _scale(version: SyntheticVersion, name: str, shape: tuple[int, ...]) -> float:
    kind = kind_of(name)
    if kind in (EMBEDDING, "lm_head.weight"):
        gain = STREAM
    elif len(shape) > 1 or kind == "norm.weight":
        gain = GAINS.get(kind, 1.0) * list(shape)[-1] ** -0.5
    else:
        gain = 1.0
    for gauge, number in version.gauges.items():
        exponent = GAUGES[gauge].get(kind)
        if exponent is not None:
            gain *= 2.0 ** (number * exponent)
            gain = -gain if gauge == NEGATED and number > 0 else gain
    return gain
