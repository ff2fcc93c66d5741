"""Where tensors are cut into blocks, so that every permitted shard is a union of them.

Pure: name, shape and model facts decide, never the layout of a run, so that
roots are the same under any layout.

    q, k, v (and biases)     axis 0   at the heads where a tensor-parallel rank begins
    latent attention         axis 0   at equal parts: as the trainer splits the small vectors, and at heads
    gate, up (and biases)    axis 0   at equal parts
    o, down                  axis 1   at equal parts
    adapters: B of q, k, v, gate, up and A of o, down as the matrix itself
    embeddings, output layer axis 0   as the trainer splits the vocabulary, and as vLLM does
    stacked experts          axis 0   at every expert
    one expert's tensors     whole    (an expert-parallel rank holds whole experts)
    a vision tower           whole    (every rank that computes images holds all of it)
    all others               whole    (norms, routers, biases behind a reduction)

Pipeline ranks hold whole layers, and so whole tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from trimaran.model.folder import ModelFacts
from trimaran.types import TensorInfo

MAX_TENSOR_PARALLEL = 16
VLLM_VOCABULARY_STEP = 64
"""vLLM pads the vocabulary to a multiple of it and then gives each rank an equal part."""

Cuts = tuple[int, ...]


def cut_tensors(
    specs: Iterable[tuple[str, str, tuple[int, ...]]], facts: ModelFacts | None
) -> tuple[TensorInfo, ...]:
    """From (Hugging Face name, dtype, shape); without facts each tensor is one block."""
    return tuple(
        TensorInfo(name, dtype, tuple(shape), *_grid(name, tuple(shape), facts))
        for name, dtype, shape in specs
    )


def permitted_sizes(facts: ModelFacts) -> tuple[int, ...]:
    """Tensor-parallel sizes into which the heads and the MLP divide.

    Where there are more ranks than key/value heads, a head is held by several ranks.
    """
    # Of a model with experts only the one that every token passes is split, where there is one.
    inner = [facts.shared_expert_size] if facts.num_experts else [facts.intermediate_size]
    if facts.first_experts:
        inner.append(facts.intermediate_size)
    return tuple(
        size
        for size in range(1, MAX_TENSOR_PARALLEL + 1)
        if facts.num_heads % size == 0
        and (facts.num_kv_heads % size == 0 or size % facts.num_kv_heads == 0)
        and not any(length % size for length in inner)
    )


def _grid(name: str, shape: tuple[int, ...], facts: ModelFacts | None) -> tuple[int, Cuts]:
    """(axis, cuts)."""
    if facts is not None:
        for pattern, num_axes, axis, cut in RULES:
            if re.search(pattern, name) and len(shape) in num_axes:
                return axis, cut(shape[axis], facts)
    return 0, ()


def _queries(length: int, facts: ModelFacts) -> Cuts:
    # Another length is that of another kind of attention (a vision tower's): one block.
    if length != facts.num_heads * facts.head_dim:
        return ()
    return _equal_parts(length, facts)


def _outputs(length: int, facts: ModelFacts) -> Cuts:
    if length != facts.projections["o_proj"][1]:
        return ()
    return _equal_parts(length, facts)


def _keys(length: int, facts: ModelFacts) -> Cuts:
    if length != facts.num_kv_heads * facts.head_dim:
        return ()
    return _parts(length, (min(size, facts.num_kv_heads) for size in permitted_sizes(facts)))


def _equal_parts(length: int, facts: ModelFacts) -> Cuts:
    return _parts(length, permitted_sizes(facts))


def _parts(length: int, sizes: Iterable[int]) -> Cuts:
    return _inside(
        length,
        (length // size * rank for size in sizes if length % size == 0 for rank in range(1, size)),
    )


def _vocabulary(length: int, facts: ModelFacts) -> Cuts:
    padded = -(-length // VLLM_VOCABULARY_STEP) * VLLM_VOCABULARY_STEP
    sizes = permitted_sizes(facts)
    trainer = (-(-length // size) * rank for size in sizes for rank in range(1, size))
    vllm = (
        padded // size * rank for size in sizes if padded % size == 0 for rank in range(1, size)
    )
    return _inside(length, (*trainer, *vllm))


def _whole(length: int, facts: ModelFacts) -> Cuts:
    return ()


def _experts(length: int, facts: ModelFacts) -> Cuts:
    return tuple(range(1, length))


def _inside(length: int, cuts: Iterable[int]) -> Cuts:
    return tuple(sorted({cut for cut in cuts if 0 < cut < length}))


RULES: tuple[tuple[str, tuple[int, ...], int, Callable[[int, ModelFacts], Cuts]], ...] = (
    (r"\.experts\.\d+\.", (1, 2), 0, _whole),
    (r"(^|\.)visual\.", (1, 2), 0, _whole),
    (r"\.experts\.\w+(\.weight|\.bias)?$", (2, 3), 0, _experts),
    (r"\bself_attn\.q_proj\.(lora_B\.)?(weight|bias)$", (1, 2), 0, _queries),
    (r"\bself_attn\.[kv]_proj\.(lora_B\.)?(weight|bias)$", (1, 2), 0, _keys),
    (r"\b(gate|up)_proj\.(lora_B\.)?(weight|bias)$", (1, 2), 0, _equal_parts),
    (
        r"\bself_attn\.(q_a_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.weight$",
        (2,),
        0,
        _equal_parts,
    ),
    (r"\bself_attn\.o_proj\.(lora_A\.)?weight$", (2,), 1, _outputs),
    (r"\bdown_proj\.(lora_A\.)?weight$", (2,), 1, _equal_parts),
    (r"\b(embed_tokens|lm_head)\.(weight|bias)$", (1, 2), 0, _vocabulary),
)
"""(pattern, number of axes, axis, cuts along it); the first that fits."""
