"""Reads a submitted specification within bounds, so that reading it costs little."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import yaml

from trimaran.config import set_override
from trimaran.errors import InputError, LimitError

MAX_CONFIG_BYTES = 1 << 20
MAX_OVERRIDES = 200
MAX_OVERRIDE_BYTES = 4096
MAX_DEPTH = 16
"""Levels of sections and lists within each other; a run's own configuration has six."""
MAX_NODES = 5_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's, where it is built in, reads 1 MiB in a fraction of the time."""


def read_specification(text: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The tree, not checked against `RunConfig` yet. Raises InputError and LimitError."""
    _check_size("config", text, MAX_CONFIG_BYTES)
    if len(overrides) > MAX_OVERRIDES:
        raise LimitError(f"overrides: {len(overrides)}; at most {MAX_OVERRIDES}")
    tree = _load("config", text)
    if not isinstance(tree, dict):
        raise InputError("config: must hold sections such as model:, data:, reward:")
    sections = cast(dict[str, Any], tree)
    if odd := [key for key in cast(dict[Any, Any], tree) if not isinstance(key, str)]:
        raise InputError(f"config: {odd[0]!r}: unknown key; sections are words")
    for number, override in enumerate(overrides):
        field = f"overrides[{number}]"
        _check_size(field, override, MAX_OVERRIDE_BYTES)
        value = _load(field, override.partition("=")[2])
        try:
            set_override(sections, override, value)
        except InputError as error:
            raise InputError(f"{field}: {error}") from None
    return sections


def _check_size(field: str, text: str, most: int) -> None:
    size = len(text.encode(errors="surrogatepass"))
    if size > most:
        raise LimitError(f"{field}: {size} bytes; at most {most}")


def _load(field: str, text: str) -> Any:
    try:
        _check_shape(field, text)
        return yaml.load(text, Loader=_Loader) if text else ""
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{field}: not YAML: {' '.join(str(error).split())}") from None


def _check_shape(field: str, text: str) -> None:
    """Aliases let a short text stand for a huge tree."""
    depth = nodes = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.AliasEvent):
            raise InputError(f"{field}: *{event.anchor}: no aliases here; write the value out")
        nodes += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH or nodes > MAX_NODES:
            raise LimitError(
                f"{field}: more than {MAX_DEPTH} levels or {MAX_NODES} values; no run needs so many"
            )
