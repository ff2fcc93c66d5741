"""Hugging Face folders: the tensors of one, and the writing of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from trimaran.errors import InputError
from trimaran.model_manifest import MANIFEST

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
SHARD_BYTES = 5 * 10**9
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
"""Weights of the model we started from, in any format."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def load_tensors(folder: Path, tied: bool) -> dict[str, torch.Tensor]:
    """Memory-mapped tensors by Hugging Face name. Raises InputError when a file is broken."""
    files = _indexed_files(folder / INDEX) if (folder / INDEX).is_file() else [WEIGHTS]
    tensors: dict[str, torch.Tensor] = {}
    for name in files:
        try:
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{folder / name}: cannot be read ({error})") from None
    if not tied and HEAD not in tensors and EMBEDDING in tensors:
        raise InputError(f"{folder}: config.json says untied, but {HEAD} is missing")
    return tensors


def _indexed_files(path: Path) -> list[str]:
    try:
        return sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(
            f"{path}: does not name the weights' files; is the download complete?"
        ) from None


def write_model_folder(
    target: Path, source: Path, tensors: Iterable[tuple[str, torch.Tensor]], dtype: str
) -> None:
    """A folder that plain transformers loads, with everything but the weights from `source`.

    Appears under its name only when it is whole.
    """
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for path in source.iterdir():
        if path.is_file() and path.suffix not in NOT_COPIED and path.name not in (INDEX, MANIFEST):
            shutil.copyfile(path, temporary / path.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _write_weights(temporary, _shards(tensors))
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)


def _shards(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors:
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _write_weights(folder: Path, shards: list[dict[str, torch.Tensor]]) -> None:
    metadata = {"format": "pt"}
    if len(shards) == 1:
        save_file(shards[0], folder / WEIGHTS, metadata)
        return
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / name, metadata)
        places |= dict.fromkeys(shard, name)
    index: Mapping[str, object] = {
        "metadata": {"total_size": sum(t.nbytes for shard in shards for t in shard.values())},
        "weight_map": places,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
