"""A safetensors file that is written one tensor at a time, so that no copy of all of them is needed.

Format: the header's length as eight bytes, the header as JSON, then the tensors' bytes without gaps
(https://github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import torch

from trimaran.errors import InternalError
from weights.memory.host_memory import DTYPE_NAMES, DTYPES

LENGTH_BYTES = 8
ALIGNMENT = 8
"""The alignment of the first tensor; readers map the file."""


class Spec(NamedTuple):
    """Example: Spec("model.norm.weight", "BF16", (576,))"""

    name: str
    dtype: str
    """As the format names it."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


def spec_of(name: str, tensor: torch.Tensor) -> Spec:
    return Spec(name, DTYPE_NAMES[tensor.dtype], tuple(tensor.shape))


class TensorFile:
    """A safetensors file, written tensor by tensor.

    Example:
        with TensorFile(path, [Spec("a", "F32", (2,))]) as file:
            file.write("a", torch.ones(2))
    """

    def __init__(
        self, path: Path, specs: Iterable[Spec], metadata: Mapping[str, str] | None = None
    ) -> None:
        """`specs`: of all tensors that will be written, in whatever order."""
        self._path, self._missing = path, {spec.name: spec for spec in specs}
        self._header: dict[str, object] = {}
        if metadata is not None:
            self._header["__metadata__"] = dict(metadata)
        self._starts: dict[str, int] = {}
        end = 0
        for name, spec in self._missing.items():
            self._starts[name] = start = end
            end += spec.num_bytes
            entry = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": (start, end)}
            self._header[name] = entry
        text = self._text()
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
        self._first = self._file.tell()

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
        if error is None and self._missing:
            raise InternalError(f"{self._path}: {', '.join(self._missing)} not written")

    def _text(self) -> bytes:
        text = json.dumps(self._header).encode()
        return text + b" " * (-len(text) % ALIGNMENT)

    def replace_metadata(self, metadata: Mapping[str, str]) -> bytes:
        """The header with `metadata`, which takes as many bytes as what it replaces. Raises
        InternalError where it does not."""
        self._header["__metadata__"] = dict(metadata)
        text = self._text()
        if LENGTH_BYTES + len(text) != self._first:
            raise InternalError(f"{self._path}: the metadata has another length than before")
        self._file.seek(LENGTH_BYTES)
        self._file.write(text)
        return text

    def write(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What was written, on the host. Raises InternalError for a tensor that is not announced."""
        if self._missing.pop(name, None) != spec_of(name, tensor):
            raise InternalError(
                f"{self._path}: {name} was announced otherwise, or is written twice"
            )
        host = tensor.detach().contiguous().cpu()
        self._file.seek(self._first + self._starts[name])
        self._file.write(raw(host))
        return host


def read_header(path: Path) -> bytes:
    """As it stands in the file. Raises ValueError for a file that ends before it does."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if length > path.stat().st_size:
            raise ValueError("it ends within its header")
        return file.read(length)


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
