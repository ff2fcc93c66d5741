"""What another system's file and command line give, as dotted keys and values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import yaml

from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError

FILE_WORD = "config="
HYDRAS = ("defaults", "hydra")
"""Sections that say which files and folders Hydra takes."""
MISSING = "???"
"""Hydra's sign for a value that has to be given."""
DEPTH = 32
QUOTED_OR_KEY = re.compile(r"""("[^"]*"|'[^']*')|([{,]\s*[\w.-]+:)(?=[^\s/])""")
"""A part of {key:value}: a text in quotes, or a key and its colon with no blank behind it."""


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


def read_given(path: Path | None, words: Sequence[str]) -> dict[str, Any]:
    """The dotted keys and values of a YAML file, with `key=value` words over them; without a path those of the words
    alone.

    Of Hydra's syntax `+key=value` and `++key=value` set a key as well, and `~key` takes it away; a
    section as a value, `key={a:1}`, is laid over the section that is there. EasyR1's `config=FILE` names a file.
    Raises InputError for what cannot be read, for a `~key` that takes nothing away, and for a value that refers to
    another one.
    """
    files = [path] if path else []
    files += [Path(word.removeprefix(FILE_WORD)) for word in words if word.startswith(FILE_WORD)]
    values: dict[str, Any] = {}
    for file in files:
        if (tree := read_tree(file)) is None:
            raise InputError(f"{file}: must hold sections")
        values = _flat(tree) | values
    for word in words:
        if not word.startswith(FILE_WORD):
            _apply(values, word)
    refers = [
        f"{key}: refers to another value ({value})"
        for key, value in values.items()
        if "${" in str(value)
    ]
    if refers:
        raise InputError("\n".join(f"{fault}: give KEY=VALUE behind the file" for fault in refers))
    return values


def read_tree(path: Path) -> dict[str, Any] | None:
    """A YAML file that holds a mapping; None for anything else. Raises InputError for what is no YAML."""
    try:
        tree = parse_yaml(_text(path), _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    return cast(dict[str, Any], tree) if isinstance(tree, dict) else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text ({error})") from None


def _apply(values: dict[str, Any], word: str) -> None:
    key, equals, text = word.lstrip("+").partition("=")
    if word.startswith("~"):
        key = key.removeprefix("~")
        if not _remove(values, key):
            near = "".join(f"; did you mean ~{one}?" for one in get_close_matches(key, values, n=1))
            raise InputError(f"{key} is not given, so ~{key} would take nothing away{near}")
    elif not equals or not key:
        raise InputError(f"{word!r}: an override reads key=value, +key=value or ~key")
    else:
        # A section is laid over the one that is there.
        for name, value in _flat({key: _scalar(text)}).items():
            _remove(values, name)
            for place in (place for place, letter in enumerate(name) if letter == "."):
                values.pop(name[:place], None)  # a value, such as null, where a section is now
            values[name] = value


def _remove(values: dict[str, Any], key: str) -> bool:
    """Whether it was there."""
    found = [known for known in values if known == key or known.startswith(f"{key}.")]
    for known in found:
        del values[known]
    return bool(found)


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys. Hydra's `defaults:` and `_target_:` are dropped: they say what our tables know."""
    flat: dict[str, Any] = {}
    if prefix.count(".") > DEPTH:  # YAML's aliases can do that
        raise InputError(
            f"{prefix[:80]}…: holds itself, or more than {DEPTH} sections in each other"
        )
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if name == "_target_" or key.partition(".")[0] in HYDRAS:
            continue
        if isinstance(value, dict):
            flat |= _flat(cast(dict[str, Any], value), f"{key}.")
        elif value != MISSING:
            flat[key] = value
    return flat


def _scalar(text: str) -> Any:
    """As Hydra reads what stands behind `key=`: no blank is needed behind the colons of {a:1,b:2}."""
    if text.startswith(("{", "[")):
        text = QUOTED_OR_KEY.sub(lambda found: found[1] or f"{found[2]} ", text)
    try:
        return parse_yaml(text, _Loader) if text else None
    except yaml.YAMLError:
        return text
