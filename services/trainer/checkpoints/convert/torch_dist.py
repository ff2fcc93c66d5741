"""The files of a distributed checkpoint that megatron-core calls `torch_dist`: how one is written.

    metadata.json    which format it is
    common.pt        what is no tensor: nothing here, as megatron-core saves it of a model alone
    .metadata        a pickled torch.distributed.checkpoint.Metadata: each tensor's shape, and in which file
                     its pieces are
    __0_0.distcp     pieces one after the other, each as torch.save writes a tensor

The format is torch's (torch/distributed/checkpoint/filesystem.py); the first two files are megatron-core's
(megatron/core/dist_checkpointing). torch's own writer keeps all tensors of a file in memory; this one has one
at a time. What reads it is in torch_dist_reader.py.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from services.trainer.megatron.parameters.sharded_keys import Slot

BACKEND = "torch_dist"
CONFIG, COMMON, METADATA = "metadata.json", "common.pt", ".metadata"
FILE_BYTES = 5 * 10**9


class TorchDistWriter:
    """The writer of one folder, which is no checkpoint before all is written.

    Example:
        with TorchDistWriter(folder) as checkpoint:
            checkpoint.write([Slot("decoder.final_layernorm.weight")], torch.ones(8))
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._num_files = folder, 0
        self._file = self._next_file()
        self._tensors: dict[str, TensorStorageMetadata] = {}
        self._objects: dict[str, BytesStorageMetadata] = {}
        self._found: dict[MetadataIndex, _StorageInfo] = {}
        self._nothing = self._append([None])

    def __enter__(self) -> TorchDistWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None:
            self._finish()

    def write(self, slots: Sequence[Slot], tensor: torch.Tensor) -> None:
        """A whole parameter, as a piece of the tensor at each of `slots`. Its bytes stand there once."""
        stacked = tensor.reshape(*(1 for _ in slots[0].stack), *tensor.shape)
        stored = self._append(stacked)
        for slot in slots:
            start = torch.Size((*slot.at, *(0 for _ in tensor.shape)))
            if slot.key not in self._tensors:
                size = torch.Size(slot.shape(tuple(tensor.shape)))
                properties = TensorProperties(dtype=tensor.dtype)
                self._tensors[slot.key] = TensorStorageMetadata(properties, size, [])
            self._tensors[slot.key].chunks.append(ChunkStorageMetadata(start, stacked.shape))
            self._found[MetadataIndex(slot.key, start)] = stored

    def write_nothing(self, key: str) -> None:
        """What a module saves besides its tensors, where it saves nothing."""
        self._objects[key] = BytesStorageMetadata()
        self._found[MetadataIndex(key)] = self._nothing

    def _append(self, value: object) -> _StorageInfo:
        if self._file.tell() >= FILE_BYTES:
            self._file.close()
            self._file = self._next_file()
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes:
            value = value.clone()  # torch.save writes all that a view is of
        start = self._file.tell()
        _save(value, self._file)
        return _StorageInfo(Path(self._file.name).name, start, self._file.tell() - start)

    def _next_file(self) -> BinaryIO:
        file = (self._folder / f"__0_{self._num_files}.distcp").open("wb")
        self._num_files += 1
        return file

    def _finish(self) -> None:
        metadata = Metadata(
            {**self._tensors, **self._objects},
            storage_data=self._found,
            storage_meta=StorageMeta(),
            version=CURRENT_DCP_VERSION,
        )
        (self._folder / METADATA).write_bytes(pickle.dumps(metadata))
        with (self._folder / COMMON).open("wb") as file:
            _save({}, file)
        config = {"sharded_backend": BACKEND, "sharded_backend_version": 1}
        config |= {"common_backend": "torch", "common_backend_version": 1}
        (self._folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")


def _save(value: object, file: BinaryIO) -> None:
    """Raises the OSError of a disk that is full, which torch has an error of its own for."""
    try:
        torch.save(value, file)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
