"""Which parameters of a model do not train: patterns over the names that its Hugging Face folder has."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from trimaran.errors import InputError

KEY = "trainer.freeze"
"""Where the patterns stand in the configuration."""
NUMBER = re.compile(r"\.\d+\.")
NEAREST = 3


def is_frozen(name: str, patterns: Sequence[str]) -> bool:
    """In a pattern `*` stands for any characters, also dots.

    Example: is_frozen("model.layers.3.mlp.gate.weight", ["*.mlp.gate.weight"])
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(patterns: Sequence[str], names: Iterable[str]) -> None:
    """Raises InputError for a pattern that none of the names matches, and where nothing would train."""
    names = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            # One for each kind, not for each layer and expert.
            kinds = list(dict.fromkeys(NUMBER.sub(".*.", name) for name in names))
            near = difflib.get_close_matches(pattern, kinds, n=NEAREST, cutoff=0.0)
            raise InputError(
                f"{KEY}: {pattern!r} matches no tensor of the model; near it are {', '.join(near)}"
            )
    if all(is_frozen(name, patterns) for name in names):
        raise InputError(f"{KEY}: matches every tensor of the model, so nothing would train")
