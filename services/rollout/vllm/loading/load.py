"""A version from a shadow into a vLLM worker's model, by Hugging Face names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from services.rollout.vllm.loading.experts import renew_kernels
from services.rollout.vllm.loading.in_place import Writes
from services.rollout.vllm.loading.modules import BASE, Finder, locate, span
from services.rollout.vllm.loading.synthetic import synthetic_tensors
from services.rollout.vllm.plugin import HOST_RANK, SYNTHETIC
from trimaran.errors import InternalError
from trimaran.model.tensor_names import is_adapter
from trimaran.types import TensorInfo
from weights.memory.changes import open_changes
from weights.memory.host_memory import MemoryReader
from weights.memory.shadow import open_blocks, open_shadow, tensors_of

Tensors = Iterable[tuple[str, torch.Tensor]]

READER = MemoryReader()
"""This worker's: the next version mostly lies in the same memory."""


def open_tensors(model: torch.nn.Module, path: str, description: dict[str, Any]) -> Tensors:
    """Those of a shadow that vLLM loads, as far as this worker does, or synthetic ones."""
    if path == SYNTHETIC:
        return synthetic_tensors(description)
    finder = Finder(model)

    def part(tensor: TensorInfo) -> tuple[int, int]:
        try:
            return span(tensor, locate(finder.find(tensor.name), tensor))
        except InternalError:
            # A layer that cannot be read back. Its loader gets everything, as from a checkpoint.
            return 0, tensor.shape[tensor.axis]

    tensors = open_shadow(path, description, READER, own_host(), part)
    return ((name, tensor) for name, tensor in tensors if not is_adapter(name))


def open_writes(model: torch.nn.Module, path: str, description: dict[str, Any]) -> Writes:
    """Writes of what changed, over the version that the changes are against; without changes, of everything.
    Raises InternalError saying why they cannot be made."""
    if changes := description["changes"]:
        return Writes(model, open_changes(changes, tensors_of(description)))
    return Writes(model, open_blocks(path, description, READER, own_host()), are_all=True)


def own_host() -> int:
    """Which of the engine's."""
    return int(os.environ.get(HOST_RANK, "0"))


def load_shadow(
    model: torch.nn.Module,
    model_config: Any,
    device: torch.device,
    path: str,
    description: dict[str, Any],
) -> None:
    """Loads every tensor of the shadow; `in_place.pack` must follow. `description` is
    `Shadow.description()`.

    Raises ValueError when the model has parameters that the shadow lacks; a later load of a
    whole version puts it right.
    """
    with torch.no_grad(), _made_on(device):
        initialize_layerwise_reload(model)
        try:
            load_weights: Any = model.load_weights
            missing = feed(model, load_weights, open_tensors(model, path, description))
        finally:
            # Also after a failure: it gives every layer back what a next load starts from.
            finalize_layerwise_reload(model, model_config)
    check_missing(missing, is_tied(model_config.hf_config))


def _made_on(device: torch.device) -> AbstractContextManager[object]:
    """torch's context of a default device stands in the way of each of some ten thousand calls, so
    a host does without: tensors are made there anyway."""
    return nullcontext() if device == torch.get_default_device() else torch.device(device)


def feed(
    model: torch.nn.Module, load_weights: Callable[[Tensors], set[str]], tensors: Tensors
) -> set[str]:
    """Returns what stayed without a value, inside a layerwise reload."""
    renew_kernels(model)
    missing = {_as_loaded(name) for name, _ in model.named_parameters()}
    return (missing - {_as_loaded(name) for name in load_weights(tensors)}) | _half_loaded(model)


def _as_loaded(name: str) -> str:
    """Some of vLLM's models leave out these levels in the names of what they have loaded."""
    return name.replace(".routed_experts.", ".").replace(f"{BASE}.", ".")


def end_reload(model: torch.nn.Module, model_config: Any) -> None:
    """Gives every layer back what a next load starts from, where a reload is still open."""
    if any(get_layerwise_info(layer).can_load() for layer in model.modules()):
        with torch.no_grad():
            finalize_layerwise_reload(model, model_config)


def is_tied(config: Any) -> bool:
    """Whether the output layer is the embedding. `config`: Hugging Face's, of the whole model, by which
    transformers ties too; the part of the language model may say otherwise."""
    tied = getattr(config, "tie_word_embeddings", None)
    return bool(config.get_text_config().tie_word_embeddings if tied is None else tied)


def check_missing(missing: set[str], tied: bool) -> None:
    """`tied`: no version has an output layer. Raises ValueError naming what is missing."""
    if tied:
        missing = {name for name in missing if name.split(".")[-2:] != ["lm_head", "weight"]}
    if missing:
        raise ValueError(f"the version lacks {', '.join(sorted(missing))}")


def _half_loaded(model: torch.nn.Module) -> set[str]:
    """Layers that got some of their parts only, such as a gate without its up projection."""
    found = set()
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        # A vocabulary is padded, so it is never full.
        if info.can_load() and not isinstance(layer, VocabParallelEmbedding):
            total = info.load_numel_total or 0
            if 0 < info.load_numel < total:
                found.add(f"part of {name}")
    return found
