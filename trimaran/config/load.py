"""From YAML and `key=value` words to a configuration, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from trimaran.config.data import as_dataset
from trimaran.config.faults import describe_faults
from trimaran.config.run import LENGTH_KEYS
from trimaran.config.tree import RunConfig
from trimaran.config.values import as_branch
from trimaran.config.yaml_text import parse_yaml
from trimaran.errors import InputError
from trimaran.host.system_errors import refused
from trimaran.trust.allowed import absolute_words

PATH_KEYS = (("model", "path"), ("data", "train"), ("data", "validation"), ("trainer", "load"))


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file, apply `key.sub=value` overrides, check everything."""
    return parse_config(load_tree(path, overrides), source=str(Path(path)))


def load_tree(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a YAML file and the overrides say, with absolute paths, not checked yet."""
    path = Path(path)
    try:
        tree = as_branch(parse_yaml(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise refused(f"{path}: cannot be read", error, "give a run's YAML file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if tree is None:
        raise InputError(f"{path}: must hold sections such as model:, data:, reward:")
    return resolve_tree(tree, path.parent, overrides)


def resolve_tree(
    tree: Mapping[str, Any], folder: Path, overrides: Sequence[str] = ()
) -> dict[str, Any]:
    """A copy in plain values. Relative paths of `tree` start at `folder`, those of `overrides` at
    the working directory."""
    plain: dict[str, Any] = to_jsonable_python(tree)
    for section, key in PATH_KEYS:
        branch = as_branch(plain.get(section)) or {}
        if isinstance(branch.get(key), str):
            branch[key] = str((folder / branch[key]).resolve())
    _resolve_inner_paths(plain, folder)
    names = [f"run.{key}" for key in LENGTH_KEYS]
    if any(override.partition("=")[0] in names for override in overrides):
        run = as_branch(plain.get("run")) or {}
        for key in LENGTH_KEYS:
            run.pop(key, None)
    for override in overrides:
        _apply(plain, override)
    _resolve_inner_paths(plain, Path.cwd())  # those of overrides, as for PATH_KEYS
    return plain


def _resolve_inner_paths(tree: dict[str, Any], folder: Path) -> None:
    """Those that stand in lists and mappings of sections."""
    _resolve_rule_paths(tree, folder)
    _resolve_environment_paths(tree, folder)
    data = as_branch(tree.get("data")) or {}
    for name in ("train", "validation"):
        if isinstance(data.get(name), list):
            data[name] = [_resolve_dataset(item, folder) for item in data[name]]


def _resolve_dataset(item: Any, folder: Path) -> Any:
    given = as_dataset(item)
    if given is None or not isinstance(given.get("path"), str):
        return item
    return {**given, "path": str((folder / given["path"]).resolve())}


def _resolve_rule_paths(tree: dict[str, Any], folder: Path) -> None:
    """Files of reward functions and certificates, as PATH_KEYS."""
    reward = as_branch(tree.get("reward")) or {}
    rules = as_branch(reward.get("rules")) or {}
    for rule in filter(None, map(as_branch, rules.values())):
        if "function" in rule:
            rule["function"] = _resolve_code(rule["function"], folder)
        _resolve_certificate(rule, folder)


def _resolve_environment_paths(tree: dict[str, Any], folder: Path) -> None:
    """Files of tools, of a class, of commands and of certificates."""
    section = as_branch(tree.get("environment")) or {}
    if isinstance(section.get("tools"), list):
        section["tools"] = [_resolve_code(tool, folder) for tool in section["tools"]]
    if "factory" in section:
        section["factory"] = _resolve_code(section["factory"], folder)
    for one in (section.get("agent"), *_items(section.get("mcp"))):
        _resolve_command(as_branch(one) or {}, folder)
    _resolve_certificate(section, folder)


def _resolve_command(section: dict[str, Any], folder: Path) -> None:
    """Words that name a file or a folder."""
    words = _items(section.get("command"))
    if words and all(isinstance(word, str) for word in words):
        section["command"] = list(absolute_words(words, folder))


def _items(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _resolve_code(name: Any, folder: Path) -> Any:
    """A name within a file of Python; others stay as they are."""
    is_in_file = isinstance(name, str) and ".py:" in name
    return str((folder / name).resolve()) if is_in_file else name


def _resolve_certificate(section: dict[str, Any], folder: Path) -> None:
    plugin = as_branch(section.get("plugin")) or {}
    if isinstance(plugin.get("ca_file"), str):
        plugin["ca_file"] = str((folder / plugin["ca_file"]).resolve())


def parse_config(tree: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """Check a tree of plain values. Raises InputError with one line a fault."""
    return _validated(tree, source)


def _validated(tree: Mapping[str, Any], source: str, **how: Any) -> RunConfig:
    try:
        return RunConfig.model_validate(tree, **how)
    except ValidationError as error:
        faults = describe_faults(RunConfig, error)
        raise InputError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def parse_recorded(tree: Mapping[str, Any], source: str = "configuration") -> RunConfig:
    """The same of a run whose configuration another version has resolved: what this one does not know is
    left out. For who reads what the run has left, never for who goes on with it."""
    return _validated(tree, source, extra="ignore")


def config_to_tree(config: RunConfig) -> dict[str, Any]:
    """The resolved configuration in plain values, which `parse_config` reads back."""
    return json.loads(config.model_dump_json())


def dump_config(config: RunConfig) -> str:
    """The resolved configuration as YAML that `load_config` reads back."""
    return yaml.safe_dump(config_to_tree(config), sort_keys=False, allow_unicode=True)


def _apply(tree: dict[str, Any], override: str) -> None:
    value = override_value(override)
    if tuple(override.partition("=")[0].split(".")) in PATH_KEYS and isinstance(value, str):
        value = str(Path(value).resolve())
    set_override(tree, override, value)


def override_value(override: str) -> Any:
    """That of "key.sub=value", read as YAML. Raises InputError."""
    text = override.partition("=")[2]
    try:
        return parse_yaml(text) if text else ""
    except yaml.YAMLError:
        raise InputError(f"{override!r}: the value is not YAML") from None


NAMED = ("advantage", "loss", "aggregation")
"""Keys whose name alone stands for a section."""


def set_override(tree: dict[str, Any], override: str, value: Any) -> None:
    """Puts `value` where "key.sub=text" says. Raises InputError for what reads otherwise."""
    key, equals, _ = override.partition("=")
    if not equals or not key:
        raise InputError(f"{override!r}: an override reads key.sub=value")
    *sections, last = key.split(".")
    for section in sections:
        if section in NAMED and isinstance(tree.get(section), str):
            tree[section] = {"type": tree[section]}
        branch = as_branch(tree.setdefault(section, {}))
        if branch is None:
            raise InputError(f"{override!r}: {section} is a value, not a section")
        tree = branch
    tree[last] = value
