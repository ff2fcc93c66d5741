"""What another system's file and command line give, as dotted keys and values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import yaml

from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError

FILE_WORD = "config="
RESOLVER = re.compile(r"\s*([\w.]+):")
RESOLVERS = ("", "oc.select", "oc.env")
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
    Raises InputError for what cannot be read, and for a `~key` that takes nothing away.
    """
    files = [path] if path else []
    files += [Path(word.removeprefix(FILE_WORD)) for word in words if word.startswith(FILE_WORD)]
    values: dict[str, Any] = {}
    for file in files:
        values = _flat(_read(file)) | values
    for word in words:
        if not word.startswith(FILE_WORD):
            _apply(values, word)
    return _resolve(values)


def read_tree(path: Path) -> dict[str, Any] | None:
    """A YAML file that holds a mapping; None for anything else. Raises InputError for what is no YAML."""
    try:
        tree = parse_yaml(_text(path), _Loader)
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


def _apply(values: dict[str, Any], word: str) -> None:
    key, equals, text = word.lstrip("+").partition("=")
    if word.startswith("~"):
        key = key.removeprefix("~")
        if equals and values.get(key, _scalar(text)) != _scalar(text):
            raise InputError(
                f"{word!r}: {key} is {values[key]!r}; ~{key} takes it away, whatever it is"
            )
        if not _remove(values, key):
            near = "".join(f"; did you mean ~{one}?" for one in get_close_matches(key, values, n=1))
            raise InputError(f"{word!r}: {key} is not given, so nothing would be taken away{near}")
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


def _resolve(values: Mapping[str, Any]) -> dict[str, Any]:
    """`${a.b}`, `${.c}`, `${oc.select:a.b,default}` and `${oc.env:NAME,default}` replaced, as OmegaConf
    does it. Raises InputError for other resolvers, and for what refers to a key that is not given."""
    resolved: dict[str, Any] = {}
    faults: list[str] = []
    for key, value in values.items():
        try:
            resolved |= _flat({key: _value(values, key, value)})
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise InputError("\n".join(faults))
    return resolved


_ABSENT: Any = object()


def _value(values: Mapping[str, Any], key: str, value: Any, depth: int = 0) -> Any:
    """`value`, which stands at `key`, with its references replaced."""
    if isinstance(value, list):
        return [_value(values, key, entry, depth) for entry in cast(list[Any], value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    if depth > DEPTH:
        raise InputError(f"{key}: refers to itself ({value})")
    start = value.index("${")
    end = start + 1 + _length(value[start + 1 :])
    if value[end - 1] != "}":
        raise InputError(f"{key}: {value} has a ${{ without its }}")
    inside = value[start + 2 : end - 1]
    found = _referred(values, key, inside, depth + 1)
    if (start, end) == (0, len(value)):
        return found
    rest = _value(values, key, value[end:], depth + 1)
    return value[:start] + "".join("null" if part is None else str(part) for part in (found, rest))


def _referred(values: Mapping[str, Any], key: str, reference: str, depth: int) -> Any:
    """What stands between ${ and }. The fallback counts, and is looked at, where the name is not given."""
    match = RESOLVER.match(reference)
    resolver = match[1] if match else ""
    if resolver not in RESOLVERS:
        raise InputError(
            f"{key}: ${{{reference}}} asks for {resolver}, and of Hydra's resolvers oc.select and oc.env are"
            f" read here: give {key}=VALUE"
        )
    name, fallback = _at_comma(reference[match.end() if match else 0 :])
    name = str(_value(values, key, name.strip(), depth))
    found = (
        os.environ.get(name, _ABSENT) if resolver == "oc.env" else _find(values, key, name, depth)
    )
    if found is not _ABSENT:
        return found
    if fallback is not None:
        default = _value(values, key, fallback.strip(), depth)
        return _scalar(default) if isinstance(default, str) else default
    if resolver == "oc.select":
        return None
    remedy = f"set {name} in the environment" if resolver else f"give {name}=VALUE"
    raise InputError(f"{key}: refers to {name}, which is not given: {remedy}, or {key}=VALUE")


def _find(values: Mapping[str, Any], key: str, name: str, depth: int) -> Any:
    """The value at `name`, or a section's values; `_ABSENT` where it is not given."""
    if name.startswith("."):
        dots = len(name) - len(name.lstrip("."))
        name = ".".join([*key.split(".")[:-dots], name.lstrip(".")])
    if name in values:
        return _value(values, name, values[name], depth)
    below = [known for known in values if known.startswith(f"{name}.")]
    section = {
        known[len(name) + 1 :]: _value(values, known, values[known], depth) for known in below
    }
    return section or _ABSENT


def _length(text: str) -> int:
    """How long the reference is that `text` begins with, its braces included."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if not depth:
            return place + 1
    return len(text)


def _at_comma(text: str) -> tuple[str, str | None]:
    """What stands before and behind the first comma that is not inside of another reference."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            return text[:place], text[place + 1 :]
    return text, None


def _scalar(text: str) -> Any:
    """As Hydra reads what stands behind `key=`: no blank is needed behind the colons of {a:1,b:2}."""
    if text.startswith(("{", "[")):
        text = QUOTED_OR_KEY.sub(lambda found: found[1] or f"{found[2]} ", text)
    try:
        return parse_yaml(text, _Loader) if text else None
    except yaml.YAMLError:
        return text
