"""Models of 70 and 235 billion parameters as the weight plane sees them: names, shapes, blocks, shares.

The tensors are stand-ins. Their names, dtypes, shapes and cuts are those of the published models;
their digests are of their names, and nobody allocates their bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.trimaran.model.memory.models import QWEN3_235B
from trimaran.model.folder import ModelFacts
from trimaran.types import Manifest, Offer, Peer, Ranges, TensorInfo
from weights.version.grid import cut_tensors
from weights.version.layout import to_ranges
from weights.version.manifest import build_manifest, digest_bytes, list_blocks

DTYPE = "BF16"

Spec = tuple[str, tuple[int, ...]]
"""Hugging Face name and shape."""


@dataclass(frozen=True, slots=True)
class LargeModel:
    """Example: LLAMA_70B.num_senders is 32."""

    name: str
    facts: ModelFacts
    tensor: int
    """Tensor-parallel size of the trainer."""
    pipeline: int
    expert: int
    """Expert-parallel size; a sender of each stage has an equal part of its experts."""
    devices: int
    """Of a replica, on one host."""

    @property
    def num_senders(self) -> int:
        return self.pipeline * max(self.tensor, self.expert)


LLAMA_70B = LargeModel(
    "llama_70b",
    ModelFacts("llama", 80, 8192, 28672, 64, 8, 128, 128256, False, 131072),
    *(8, 4, 1, 4),
)
QWEN_235B = LargeModel("qwen3_235b", QWEN3_235B.facts, *(4, 2, 32, 8))
MODELS = (LLAMA_70B, QWEN_235B)


def manifest_of(model: LargeModel, step: int = 0) -> Manifest:
    """Of the true count and shapes; another `step` has other digests."""
    infos = cut_tensors(((name, DTYPE, shape) for name, shape in _specs(model.facts)), model.facts)
    return build_manifest([_with_digests(info, step) for info in infos])


def offers_of(model: LargeModel, manifest: Manifest) -> list[Offer]:
    """One a sender, each on a host of its own."""
    shares: list[list[int]] = [[] for _ in range(model.num_senders)]
    for block in list_blocks(manifest.tensors):
        shares[_owner(model, block.tensor, block.start)].append(block.number)
    return [
        Offer(peer_of(f"trainer-{rank}"), to_ranges(share), f"/memory/{rank}")
        for rank, share in enumerate(shares)
    ]


def peer_of(name: str) -> Peer:
    return Peer(f"{name}:1", "key", name)


def all_blocks(manifest: Manifest) -> Ranges:
    return ((0, manifest.num_blocks),)


def _with_digests(info: TensorInfo, step: int) -> TensorInfo:
    names = (f"{info.name} {index} {step}" for index in range(info.num_blocks))
    return replace(info, digests=tuple(digest_bytes(name.encode()) for name in names))


def _owner(model: LargeModel, tensor: TensorInfo, start: int) -> int:
    parts = tensor.name.split(".")
    layer = int(parts[2]) if parts[1] == "layers" else 0
    if parts[0] == "lm_head" or parts[1] == "norm":
        layer = model.facts.num_layers - 1
    stage = layer * model.pipeline // model.facts.num_layers
    if "experts" in parts:
        rank = int(parts[5]) * model.expert // model.facts.num_experts
    elif tensor.cuts:
        rank = start // -(-tensor.shape[tensor.axis] // model.tensor)
    else:
        rank = 0
    return stage * (model.num_senders // model.pipeline) + rank


def _specs(facts: ModelFacts) -> Iterator[Spec]:
    yield "model.embed_tokens.weight", (facts.vocab_size, facts.hidden_size)
    for layer in range(facts.num_layers):
        yield from _layer(facts, f"model.layers.{layer}")
    yield "model.norm.weight", (facts.hidden_size,)
    yield "lm_head.weight", (facts.vocab_size, facts.hidden_size)


def _layer(facts: ModelFacts, path: str) -> Iterator[Spec]:
    hidden, attention = facts.hidden_size, f"{path}.self_attn"
    queries, keys = facts.num_heads * facts.head_dim, facts.num_kv_heads * facts.head_dim
    yield f"{attention}.q_proj.weight", (queries, hidden)
    yield f"{attention}.k_proj.weight", (keys, hidden)
    yield f"{attention}.v_proj.weight", (keys, hidden)
    yield f"{attention}.o_proj.weight", (hidden, queries)
    if facts.family.startswith("qwen3"):
        yield f"{attention}.q_norm.weight", (facts.head_dim,)
        yield f"{attention}.k_norm.weight", (facts.head_dim,)
    yield f"{path}.input_layernorm.weight", (hidden,)
    yield f"{path}.post_attention_layernorm.weight", (hidden,)
    if not facts.num_experts:
        yield from _mlp(f"{path}.mlp", hidden, facts.intermediate_size)
        return
    yield f"{path}.mlp.gate.weight", (facts.num_experts, hidden)
    for expert in range(facts.num_experts):
        yield from _mlp(f"{path}.mlp.experts.{expert}", hidden, facts.expert_size)


def _mlp(path: str, hidden: int, inner: int) -> Iterator[Spec]:
    yield f"{path}.gate_proj.weight", (inner, hidden)
    yield f"{path}.up_proj.weight", (inner, hidden)
    yield f"{path}.down_proj.weight", (hidden, inner)
