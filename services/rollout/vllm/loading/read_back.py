"""Digests of what a vLLM worker has loaded, block by block.

What is read is always what a layer computes with. On the host vLLM packs a
linear layer's weight and drops the original: its product with the identity is
the weight, exactly: each element is one product with 1, plus zeros. (Only that
processors with AVX512-BF16 take a bf16 number below 2^-126 for zero in every
product, and so in this one: a weight that small reads back wrong there.) An output
layer that is tied to the embedding has a packed copy of its own there, so a
block of the embedding is read from both.

The product costs K multiplications an element, and nothing exact costs less: the packed
memory belongs to a C++ object of vLLM that does not give out its address, and a product with fewer
rows than K has too few bits. (Its results are rounded to the weights' own dtype, so a row that
adds several columns up loses the last bits of the small ones.)

Axes: N output features of a layer on this rank, K input features, R rows of
the identity at a time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)

from services.rollout.read_back import Reader, digest_copies, list_wanted
from services.rollout.vllm.loading.experts import local_number, read_expert, read_turned
from services.rollout.vllm.loading.modules import (
    Finder,
    HeldTensor,
    ParameterPlace,
    check_stack,
    find_heads,
    linear_shape,
    locate,
    span,
)
from trimaran.errors import InternalError
from trimaran.types import Manifest, Ranges
from weights.memory.host_memory import DTYPES
from weights.version.manifest import Block

PRODUCT_SIZE = 1 << 30
"""Multiplications between two places where a read-back may be interrupted."""
MIN_ROWS, MAX_ROWS = 16, 256
"""Rows of one product. With more, each weight is unpacked for fewer of them."""


def read_loaded(model: torch.nn.Module, tied: bool, manifest: Manifest, ranges: Ranges) -> Reader:
    """Digests of the blocks that this rank holds. `tied`: the output layer is the embedding's.

    A module is read once (of fused experts: each expert), whatever the order of its tensors.
    Raises InternalError naming a tensor that it does not know how to read.
    """
    finder = Finder(model)
    by_module: dict[tuple[str, int | None], list[tuple[Block, ParameterPlace]]] = {}
    for block in list_wanted(manifest, ranges):
        place = finder.find(block.tensor.name)
        by_module.setdefault((place.path, place.expert), []).append((block, place))
    for wanted in by_module.values():
        yield from _read_module(model, tied, wanted)


def _read_module(
    model: torch.nn.Module, tied: bool, wanted: list[tuple[Block, ParameterPlace]]
) -> Reader:
    copies: dict[str, list[torch.Tensor]] = {}
    for block, place in wanted:
        if place.is_stack:
            yield from _read_stacked(block, place)
            continue
        held = locate(place, block.tensor)
        if not _is_here(block, held):
            continue
        if place.parameter not in copies:
            copies[place.parameter] = yield from _read_copies(model, tied, place)
        pieces = [_cut(block, held, copy) for copy in copies[place.parameter]]
        yield block.number, digest_copies(block, pieces)


def _read_stacked(block: Block, place: ParameterPlace) -> Reader:
    """The digest of a block of whole experts; nothing where another rank has them."""
    tensor = block.tensor
    check_stack(place, tensor)
    experts = [local_number(place.module, number) for number in range(block.start, block.stop)]
    local = [number for number in experts if number is not None]
    if not local:
        return
    if len(local) < len(experts):
        raise InternalError(
            f"{tensor.name}: this rank holds some of the experts {block.start} to {block.stop}, which"
            " are one block; choose another rollout.tensor_parallel"
        )
    inner = tensor.shape[1] if place.parameter == "w2_weight" else tensor.shape[2] // 2
    matrices = [read_turned(place.module, place.parameter, number, inner) for number in local]
    piece = torch.stack(matrices).to(DTYPES[tensor.dtype])
    if tuple(piece.shape) != block.shape:
        raise InternalError(
            f"{tensor.name}: loaded with a shape of {tuple(piece.shape)}, not {block.shape}"
        )
    yield block.number, digest_copies(block, [piece])


def _read_copies(
    model: torch.nn.Module, tied: bool, place: ParameterPlace
) -> Generator[None, None, list[torch.Tensor]]:
    """The parameter as often as this rank computes with it."""
    if place.expert is not None:
        local = local_number(place.module, place.expert)
        assert local is not None
        return [read_expert(place.module, place.parameter, local)]
    if place.parameter != "weight":
        return [place.values]
    if not isinstance(place.module, VocabParallelEmbedding):
        own = yield from _read_weight(place.module)
        return [own, *_parts_of_latents(model, place.module)]
    looked_up = getattr(place.module, place.parameter)
    copies = [] if isinstance(place.module, ParallelLMHead) else [looked_up]
    for head in _heads(model, tied, place.module):
        copies.append((yield from _read_weight(head)))  # noqa: PERF401  a generator yields here
    return copies


def _parts_of_latents(model: torch.nn.Module, module: Any) -> list[torch.Tensor]:
    """What latent attention decodes with: its `kv_b_proj` taken apart, of which each load makes new copies."""
    layers: list[Any] = [
        layer
        for layer in model.modules()
        if getattr(layer, "kv_b_proj", None) is module and hasattr(layer, "W_UK_T")
    ]
    return [
        torch.cat([layer.W_UK_T, layer.W_UV.transpose(1, 2)], dim=1).flatten(0, 1)
        for layer in layers
    ]


def _heads(model: torch.nn.Module, tied: bool, module: Any) -> list[Any]:
    """Output layers that compute with the embedding `module`; of vLLM 0.23's Qwen2 it is one itself."""
    heads = find_heads(model)
    if module in heads:
        return [module]
    return [head for head in heads if tied or head.weight is module.weight]


def _read_weight(module: Any) -> Generator[None, None, torch.Tensor]:
    """What the layer multiplies with, [N, K]; the parameter as it is where nothing packs it."""
    if not hasattr(module, "cpu_linear"):
        return module.weight
    is_head = isinstance(module, VocabParallelEmbedding)
    num_inputs = module.embedding_dim if is_head else linear_shape(module)[1]
    first, num_rows, weight_KN = 0, MIN_ROWS, torch.empty(0)
    while first < num_inputs:
        num_rows = min(num_rows, num_inputs - first)
        identity_RK = torch.zeros(num_rows, num_inputs, dtype=module.params_dtype)
        identity_RK.diagonal(first).fill_(1)
        product_RN = module.quant_method.apply(module, identity_RK, None)
        if first == 0:
            weight_KN = product_RN.new_empty(num_inputs, product_RN.shape[1])
        weight_KN[first : first + num_rows] = product_RN
        first += num_rows
        num_rows = PRODUCT_SIZE // weight_KN.numel() // MIN_ROWS * MIN_ROWS
        num_rows = max(MIN_ROWS, min(MAX_ROWS, num_rows))
        yield
    return weight_KN.t()


def _cut(block: Block, held: HeldTensor, copy: torch.Tensor) -> torch.Tensor:
    tensor = block.tensor
    piece = copy
    if tensor.shape:
        first, _ = span(tensor, held)
        here = copy.narrow(held.axis, held.offset, held.stop - held.start)
        piece = here.narrow(tensor.axis, block.start - first, block.stop - block.start)
    if tuple(piece.shape) != block.shape:
        raise InternalError(
            f"{tensor.name}: loaded with a shape of {tuple(piece.shape)}, not {block.shape}"
        )
    if piece.ndim == 2 and piece.stride(0) == 1:
        # What is transposed as a whole is written row by row several times faster.
        piece = piece.t().contiguous().t()
    return piece.to(DTYPES[tensor.dtype])


def _is_here(block: Block, held: HeldTensor) -> bool:
    """Whether this rank holds the block."""
    first, last = span(block.tensor, held)
    return first <= block.start and block.stop <= last
