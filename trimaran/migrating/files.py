"""What another system's file and command line give, as dotted keys and values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from trimaran.errors import InputError
from trimaran.migrating.shell import find_command

SCRIPTS = (".sh", ".bash")
MODULE = "verl."
"""EasyR1's package is called verl as well."""
REFERENCE = re.compile(r"\$\{([^${}]+)\}")
HYDRAS = ("defaults", "hydra")
"""Sections that tell Hydra which files and folders to take."""
MISSING = "???"
"""Hydra's sign for a value that has to be given."""
DEPTH = 32


class _Loader(yaml.SafeLoader):
    """1e-6 is a number here, as Hydra reads it; YAML 1.1 takes it for a text."""


_Loader.yaml_implicit_resolvers = {
    first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:float"]
    for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
cast(Any, _Loader).add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.\d*([eE][-+]?\d+)?|\.\d+([eE][-+]?\d+)?|\d+[eE][-+]?\d+|\.(inf|nan))$"),
    list("-+0123456789."),
)


@dataclass(frozen=True, slots=True)
class Given:
    """What a file and the words behind it give.

    Example: Given({"actor_rollout_ref.rollout.n": 8}, []).values["actor_rollout_ref.rollout.n"] == 8
    """

    values: Mapping[str, Any]
    assumed: Sequence[str]
    """What had to be assumed of a script."""


def read_given(path: Path, overrides: Sequence[str]) -> Given:
    """A YAML file, or a script that starts a training, and `key=value` words over it.

    Of Hydra's syntax `+key=value` and `++key=value` set a key as well, and `~key` takes it away; an
    EasyR1 script names its file in `config=FILE`. Raises InputError for what cannot be read.
    """
    assumed: list[str] = []
    words = list(overrides)
    values: dict[str, Any] = {}
    if path.suffix in SCRIPTS:
        try:
            found, assumed = find_command(_text(path), MODULE, os.environ)
        except InputError as error:
            raise InputError(
                "\n".join(f"{path}: {line}" for line in str(error).splitlines())
            ) from None
        words = [word for word in found if not word.startswith("--")] + words
    else:
        values |= _flat(_read(path))
    for word in words:
        if word.startswith("config="):
            values = _flat(_read(_beside(path, word.removeprefix("config=")))) | values
    for word in words:
        if not word.startswith("config="):
            _apply(values, word)
    return Given(_resolve(values), assumed)


def read_tree(path: Path) -> dict[str, Any] | None:
    """A YAML file that holds a mapping; None for anything else. Raises InputError for what is no YAML."""
    try:
        tree = yaml.load(_text(path), _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    return cast(dict[str, Any], tree) if isinstance(tree, dict) else None


def _read(path: Path) -> dict[str, Any]:
    tree = read_tree(path)
    if tree is None:
        raise InputError(f"{path}: must hold sections")
    return tree


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text ({error})") from None


def _beside(script: Path, name: str) -> Path:
    """A file that a script names from the folder in which it is started, which is not known."""
    for folder in (Path.cwd(), *script.resolve().parents):
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{script}: names config={name}, which is not here; give config=FILE")


def _apply(values: dict[str, Any], word: str) -> None:
    key, equals, text = word.lstrip("+").partition("=")
    if word.startswith("~"):
        _remove(values, key.removeprefix("~"))
    elif not equals or not key:
        raise InputError(f"{word!r}: an override reads key=value, +key=value or ~key")
    else:
        try:
            value = yaml.load(text, _Loader) if text else None
        except yaml.YAMLError:
            value = text
        _remove(values, key)
        values |= _flat({key: value})


def _remove(values: dict[str, Any], key: str) -> None:
    for known in [known for known in values if known == key or known.startswith(f"{key}.")]:
        del values[known]


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys. Hydra's `defaults:` and `_target_:` are dropped: they say what our tables know."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if name == "_target_" or key.partition(".")[0] in HYDRAS:
            continue
        if isinstance(value, dict):
            flat |= _flat(cast(dict[str, Any], value), f"{key}.")
        elif value != MISSING:
            flat[key] = value
    return flat


def _resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """`${a.b}`, `${.c}`, `${oc.select:a.b,default}` and `${oc.env:NAME,default}` replaced.

    What refers to a key that nobody gives is left out, so that the table's default counts.
    """
    resolved = {key: _value(values, key, value) for key, value in values.items()}
    return {key: value for key, value in resolved.items() if value is not _ABSENT}


_ABSENT: Any = object()


def _value(values: Mapping[str, Any], key: str, value: Any, depth: int = 0) -> Any:
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > DEPTH:
        raise InputError(f"{key}: refers to itself ({value})")
    if match := REFERENCE.fullmatch(value):
        return _referred(values, key, match[1], depth)
    for match in list(REFERENCE.finditer(value)):  # the innermost ones
        found = _referred(values, key, match[1], depth)
        if found is _ABSENT:
            return _ABSENT
        value = value.replace(match[0], "null" if found is None else str(found))
    return _value(values, key, value, depth + 1)


def _referred(values: Mapping[str, Any], key: str, reference: str, depth: int) -> Any:
    name, _, fallback = reference.removeprefix("oc.select:").removeprefix("oc.env:").partition(",")
    name = name.strip()
    if reference.startswith("oc.env:"):
        found: Any = os.environ.get(name, _ABSENT)
    elif name.startswith("."):
        dots = len(name) - len(name.lstrip("."))
        found = values.get(".".join([*key.split(".")[:-dots], name.lstrip(".")]), _ABSENT)
    else:
        found = values.get(name, _ABSENT)
    if found is _ABSENT and fallback:
        return yaml.load(fallback, _Loader)
    return found if found is _ABSENT else _value(values, name, found, depth + 1)
