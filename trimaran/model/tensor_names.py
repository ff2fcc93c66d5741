"""The names of the tensors in a Hugging Face folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

from trimaran.host.system_errors import refused

INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
LENGTH_BYTES = 8
"""At the start of a safetensors file: those of the JSON header that follows, little-endian."""
MOST_HEADER_BYTES = 100 << 20
"""As the safetensors library has it."""
ADAPTER = re.compile(r"(?P<matrix>.+)\.(?P<part>lora_[AB])\.weight")
"""The names of adapters of low rank are those of `peft` without its prefix."""


def is_adapter(name: str) -> bool:
    return ADAPTER.fullmatch(name) is not None


def read_names(folder: Path) -> list[str]:
    """The names of all tensors in a Hugging Face folder; no tensor is read.

    Raises InputError where its index, or the header of its safetensors, is broken.
    """
    path = folder / INDEX
    try:
        if path.is_file():
            return list(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
        path = folder / WEIGHTS
        return names_of(path)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise refused(f"{path}: cannot be read", error, "is the download complete?") from None


def names_of(path: Path) -> list[str]:
    """The names of the tensors in a safetensors file. Raises OSError, and ValueError or AttributeError for another file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        header = json.loads(file.read(min(length, MOST_HEADER_BYTES)))
    return [name for name, _ in header.items() if name != "__metadata__"]
