"""Reads the tensors of a distributed checkpoint that Megatron has saved (torch_dist.py has the format), and
runs nothing that stands in it.

Its `.metadata` is a pickle, and a pickle may name any function and have it called. Here it may name the
records of torch.distributed.checkpoint alone, and gets for each of them one that keeps what it is given.
Tensors are read by torch.load with `weights_only`. Of `common.pt` two numbers are read, with nothing of what it
names; objects that are no tensors are left unread.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from services.trainer.checkpoints.convert.torch_dist import BACKEND, COMMON, CONFIG, METADATA
from trimaran.errors import InputError
from trimaran.host.system_errors import refused

RECORDS = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch.distributed.checkpoint.planner": (
        *("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData"),
    ),
    "torch.serialization": ("_get_layout",),
    # Dummies of megatron-core, in which it keeps its own.
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreMetadata", "MCoreSavePlan"),
    "pathlib": ("Path", "PosixPath", "PurePosixPath"),
    "pathlib._local": ("Path", "PosixPath", "PurePosixPath"),
}
"""What `.metadata` may name, by module; besides these torch.Size and dtypes."""
TRACKER = "latest_checkpointed_iteration.txt"


@dataclass(frozen=True, slots=True)
class SavedPiece:
    """Example: SavedPiece(start=(7, 0), shape=(1, 32), file="__0_0.distcp", offset=0, length=1500)"""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor of the checkpoint."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    pieces: Sequence[SavedPiece]
    """In the order of where they start."""
    longest: int
    """Rows that one of them has at most."""

    def near(self, start: int, length: int) -> Sequence[SavedPiece]:
        """Those that may have some of `length` rows from `start` on. Where experts are stacked there are
        thousands of pieces, and each is asked for by itself."""
        first = bisect_right(self.pieces, start - self.longest, key=_first_row)
        return self.pieces[first : bisect_left(self.pieces, start + length, key=_first_row)]


def _first_row(piece: SavedPiece) -> int:
    return piece.start[0]


def find_torch_dist(folder: Path) -> Path | None:
    """The checkpoint in a folder of Megatron-LM, or the folder itself where it is one; None where it is neither.

    Raises InputError for one of Megatron-LM's older format.
    """
    tracker = folder / TRACKER
    if tracker.is_file():
        named = tracker.read_text(encoding="utf-8", errors="replace").strip()
        folder /= f"iter_{int(named):07d}" if named.isdecimal() else "release"
    if (folder / CONFIG).is_file():
        return folder
    if tracker.is_file() or list(folder.glob("mp_rank_*")):
        raise InputError(
            f"{folder}: is no distributed checkpoint (no {CONFIG}); have Megatron save it with --ckpt-format"
            f" {BACKEND}"
        )
    return None


class _Record:
    """In place of whatever class a pickle names; does nothing with what it is given."""

    state: Any = None
    """Its fields by their names."""

    def __init__(self, *arguments: object) -> None: ...

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in RECORDS.get(module, ()):
            return _Record
        if module == "torch":
            if name == "Size":
                return tuple
            if isinstance(dtype := vars(torch).get(name), torch.dtype):
                return dtype
        raise InputError(
            f"names {module}.{name}, which no metadata of a checkpoint needs; nothing of it was run"
        )


def read_entries(folder: Path) -> dict[str, TensorEntry]:
    """The tensors of a checkpoint by their keys. Raises InputError for another format, and for a file that
    names what metadata does not need."""
    _check_backend(folder / CONFIG)
    path = folder / METADATA
    try:
        with path.open("rb") as file:
            state = _Unpickler(file).load().state
        stored = {
            (key.state["fqn"], key.state.get("offset")): info.state
            for key, info in state["storage_data"].items()
        }
        return {
            key: _entry(key, tensor.state, stored)
            for key, tensor in state["state_dict_metadata"].items()
            if tensor.state  # others are no tensors
        }
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except Exception as error:  # a pickle that is damaged raises whatever it likes
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None


class _Nothing(_Record):
    """In place of whatever else is named or made: what is put into it is dropped."""

    def __setitem__(self, key: object, value: object) -> None: ...

    def append(self, value: object) -> None: ...

    def extend(self, values: object) -> None: ...


class _InertUnpickler(pickle.Unpickler):
    """Makes numbers, texts, lists and dicts, and nothing of what a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        return _Nothing

    def persistent_load(self, pid: object) -> Any:
        return _Nothing()


def read_vocabulary_multiple(folder: Path) -> int | None:
    """To which Megatron-LM has padded the vocabulary, as the arguments that it saves say; None where the
    checkpoint has none. Raises InputError for a file that is damaged."""
    path = folder / COMMON
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            [name] = [one for one in archive.namelist() if one.endswith("/data.pkl")]
            common = _InertUnpickler(archive.open(name)).load()
    except Exception as error:  # as above
        raise InputError(f"{path}: cannot be read ({type(error).__name__}: {error})") from None
    arguments = common.get("args") if isinstance(common, dict) else None
    given = getattr(arguments, "state", None)
    if not isinstance(given, dict):
        return None
    sizes = given.get("make_vocab_size_divisible_by"), given.get("tensor_model_parallel_size")
    each, ranks = (one if type(one) is int and one > 0 else None for one in sizes)
    return each * ranks if each and ranks else None


def _check_backend(path: Path) -> None:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        backend, version = config["sharded_backend"], config["sharded_backend_version"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise refused(f"{path}: not that of a distributed checkpoint", error) from None
    if (backend, version) != (BACKEND, 1):
        raise InputError(
            f"{path}: a checkpoint of the format {backend}, version {version}; have Megatron save it with"
            f" --ckpt-format {BACKEND}"
        )


def _entry(
    key: object, state: Mapping[str, Any], stored: Mapping[tuple[Any, Any], Mapping[str, Any]]
) -> TensorEntry:
    if not isinstance(key, str):
        raise InputError(f"names a tensor {key!r}")
    pieces = list[SavedPiece]()
    for chunk in state["chunks"]:
        # A tuple that takes whole numbers alone.
        start, shape = torch.Size(chunk.state["offsets"]), torch.Size(chunk.state["sizes"])
        info = stored[key, start]
        file = info["relative_path"]
        if Path(file).name != file:
            raise InputError(f"names the file {file!r}, which is not beside it")
        pieces.append(SavedPiece(start, shape, file, info["offset"], info["length"]))
        if not len(start) == len(shape) == len(state["size"]):
            raise InputError(f"{key} has {state['size']}, and a piece of it {shape} at {start}")
    rows = (piece.shape[0] for piece in pieces if piece.shape)
    pieces.sort(key=lambda piece: piece.start)
    return TensorEntry(state["properties"].state[0], state["size"], pieces, max(rows, default=0))


def read_box(
    folder: Path, key: str, entry: TensorEntry, start: Sequence[int], shape: Sequence[int]
) -> torch.Tensor:
    """The elements of a tensor from `start` on. Raises InputError for a file that is damaged or lacks some,
    and where two pieces have the same elements."""
    box = torch.empty(*shape, dtype=entry.dtype)
    missing, read = box.numel(), list[SavedPiece]()
    for piece in entry.near(start[0], shape[0]):
        if not (shared := _shared(start, shape, piece)):
            continue
        if any(_shared(piece.start, piece.shape, one) for one in read):
            raise InputError(f"{folder}: two pieces of {key} have the same elements")
        read.append(piece)
        part, target = _read_piece(folder, key, entry.dtype, piece), box
        for axis, (low, length) in enumerate(shared):
            part = part.narrow(axis, low - piece.start[axis], length)
            target = target.narrow(axis, low - start[axis], length)
        target.copy_(part)
        missing -= part.numel()
    if missing:
        raise InputError(f"{folder}: lacks {missing} of the elements of {key}")
    return box


def _shared(
    start: Sequence[int], shape: Sequence[int], piece: SavedPiece
) -> Sequence[tuple[int, int]]:
    """By axis the first element that a box and a piece both have, and how many; empty where there is none."""
    found = list[tuple[int, int]]()
    for low, length, other, other_length in zip(
        start, shape, piece.start, piece.shape, strict=True
    ):
        first, stop = max(low, other), min(low + length, other + other_length)
        if first >= stop:
            return ()
        found.append((first, stop - first))
    return found


def _read_piece(folder: Path, key: str, dtype: torch.dtype, piece: SavedPiece) -> torch.Tensor:
    path = folder / piece.file
    try:
        with path.open("rb") as file:
            file.seek(piece.offset)
            data = io.BytesIO(file.read(piece.length))
        tensor = torch.load(data, map_location="cpu", weights_only=True)
    except Exception as error:  # torch.load raises whatever it likes
        raise InputError(f"{path}: {key} cannot be read ({error})") from None
    found = (
        (tensor.dtype, tuple(tensor.shape)) if isinstance(tensor, torch.Tensor) else type(tensor)
    )
    if found != (dtype, piece.shape):
        raise InputError(f"{path}: {key} is {found}, and {METADATA} says {dtype} of {piece.shape}")
    return tensor
