"""Which parameters of a model do not train: patterns over the names that its Hugging Face folder has."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from trimaran.errors import InputError

KEY = "trainer.freeze"
"""Where the patterns stand in the configuration."""
INDEX, WEIGHTS = "model.safetensors.index.json", "model.safetensors"
LENGTH_BYTES = 8
"""At the start of a safetensors file: those of the JSON header that follows, little-endian."""
MOST_HEADER_BYTES = 100 << 20
"""As the safetensors library has it."""
NUMBER = re.compile(r"\.\d+\.")
NEAREST = 3


def is_frozen(name: str, patterns: Sequence[str]) -> bool:
    """In a pattern `*` stands for any characters, also dots.

    Example: is_frozen("model.layers.3.mlp.gate.weight", ["*.mlp.gate.weight"])
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_folder(patterns: Sequence[str], folder: Path) -> None:
    """`check_patterns` with the names in a Hugging Face folder, which is read only where it must be."""
    if patterns:
        check_patterns(patterns, read_names(folder))


def check_patterns(patterns: Sequence[str], names: Iterable[str]) -> None:
    """Raises InputError for a pattern that none of the names matches."""
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            # One for each kind, not for each layer and expert.
            kinds = list(dict.fromkeys(NUMBER.sub(".*.", name) for name in names))
            near = difflib.get_close_matches(pattern, kinds, n=NEAREST, cutoff=0.0)
            raise InputError(
                f"{KEY}: {pattern!r} matches no tensor of the model; near it are {', '.join(near)}"
            )


def read_names(folder: Path) -> list[str]:
    """Of all tensors in a Hugging Face folder; no tensor is read.

    Raises InputError where its index, or the header of its safetensors, is broken.
    """
    path = folder / INDEX
    try:
        if path.is_file():
            return list(json.loads(path.read_text(encoding="utf-8"))["weight_map"])
        path = folder / WEIGHTS
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            header = json.loads(file.read(min(length, MOST_HEADER_BYTES)))
        return [name for name in header if name != "__metadata__"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise InputError(f"{path}: cannot be read ({error}); is the download complete?") from None
