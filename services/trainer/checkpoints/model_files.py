"""Hugging Face folders: the tensors of one, and the writing of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from services.trainer.checkpoints.tensor_file import Spec, TensorFile
from trimaran.errors import InputError, InternalError
from trimaran.host.places import put_in_place, sync
from trimaran.host.system_errors import refused
from trimaran.model.folder import EMBEDDING, HEAD
from trimaran.model.manifest import MANIFEST
from trimaran.wire import health_note

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
SHARD_BYTES = 5 * 10**9
NOT_COPIED = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx")
"""Weights of the model we started from, in any format."""


def load_tensors(folder: Path, tied: bool) -> dict[str, torch.Tensor]:
    """Memory-mapped tensors by Hugging Face name. Raises InputError when a file is broken, or the output layer is
    another than config.json says."""
    files = _indexed_files(folder / INDEX) if (folder / INDEX).is_file() else [WEIGHTS]
    tensors: dict[str, torch.Tensor] = {}
    for name in files:
        try:
            (folder / name).open(
                "rb"
            ).close()  # safetensors calls whatever fails here a missing file
            tensors |= load_file(folder / name)
        except (OSError, SafetensorError) as error:
            raise refused(f"{folder / name}: cannot be read", error) from None
    embeddings = [tensor for name, tensor in tensors.items() if name.endswith(EMBEDDING)]
    head = tensors.get(HEAD)
    if not tied and head is None and embeddings:
        raise InputError(f"{folder}: config.json says untied, but {HEAD} is missing")
    if tied and head is not None and not any(_is_same(head, one) for one in embeddings):
        raise InputError(
            f"{folder}: config.json says tied, but {HEAD} is not the embedding; set tie_word_embeddings to false"
            " there if the head is to count, or take it out of the file"
        )
    return tensors


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _indexed_files(path: Path) -> list[str]:
    try:
        return sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise InputError(
            f"{path}: does not name the weights' files; is the download complete?"
        ) from None


def write_model_folder(
    target: Path,
    source: Path,
    specs: Iterable[Spec],
    tensors: Iterable[tuple[str, torch.Tensor]],
    dtype: str,
) -> None:
    """A folder that plain transformers loads, with everything but the weights from `source`.

    `specs`: of all tensors, known before the first of them is made; each is written when its turn comes.
    Appears under its name only when it is whole and on the disk.
    """
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _copy_others(source, temporary, dtype)
        _write_weights(temporary, _split(specs), tensors)
        for path in temporary.iterdir():
            sync(path)
        put_in_place(temporary, target)
    except BaseException:  # a disk that it has filled would stay full
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _copy_others(source: Path, target: Path, dtype: str) -> None:
    for path in source.iterdir():
        if path.is_file() and path.suffix not in NOT_COPIED and path.name not in (INDEX, MANIFEST):
            shutil.copyfile(path, target / path.name)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = dtype
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _split(specs: Iterable[Spec]) -> dict[str, list[Spec]]:
    """By the name of a file of at most `SHARD_BYTES`, unless one tensor has more."""
    shards: list[list[Spec]] = [[]]
    room = SHARD_BYTES
    for spec in specs:
        if shards[-1] and spec.num_bytes > room:
            shards.append([])
            room = SHARD_BYTES
        shards[-1].append(spec)
        room -= spec.num_bytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    count = len(shards)
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": shard
        for number, shard in enumerate(shards, start=1)
    }


def _write_weights(
    folder: Path,
    shards: Mapping[str, Sequence[Spec]],
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    with ExitStack() as stack:
        files: dict[str, TensorFile] = {}
        places: dict[str, str] = {}
        for name, shard in shards.items():
            file = stack.enter_context(TensorFile(folder / name, shard, {"format": "pt"}))
            files |= dict.fromkeys((spec.name for spec in shard), file)
            places |= dict.fromkeys((spec.name for spec in shard), name)
        written = health_note.own.counted("writes", tensors, len(files), "tensors of the model")
        for name, tensor in written:
            if name not in files:
                raise InternalError(f"{name}: is not announced among the model's tensors")
            files[name].write(name, tensor)
    if len(shards) == 1:
        return
    total = sum(spec.num_bytes for shard in shards.values() for spec in shard)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
