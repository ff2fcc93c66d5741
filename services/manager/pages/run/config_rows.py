"""A configuration as rows, one a key, each with its default."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from trimaran.config import parse_recorded
from trimaran.config.section import Options


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """Example: ConfigRow("rollout.group_size", "16", "8", differs=True)"""

    key: str
    """As an override names it."""
    value: str
    """Empty where the run has no such key, as `instead`."""
    instead: str
    """The default, or another run's value. Empty for a key that must be given."""
    differs: bool

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]


GIVEN = object()
"""The default of a key that has none."""


def config_rows(tree: Mapping[str, Any]) -> Sequence[ConfigRow]:
    """Without keys that this version does not know. Raises InputError for a configuration that it does not
    read."""
    return list(_rows("", parse_recorded(tree), GIVEN))


def compare(ours: Sequence[ConfigRow], others: Sequence[ConfigRow]) -> Sequence[ConfigRow]:
    """The keys whose values differ, in our order; behind them those that only the others have."""
    theirs = {row.key: row.value for row in others}
    known = {row.key for row in ours}
    rows = [replace(row, instead=theirs.get(row.key, "")) for row in ours]
    rows += [replace(row, value="", instead=row.value) for row in others if row.key not in known]
    return [row for row in rows if row.value != row.instead]


def _rows(key: str, value: Any, default: Any) -> Iterator[ConfigRow]:
    """Keys of a section whose default is no such section have the defaults of its class."""
    if isinstance(value, BaseModel):
        yield from _rows_of_section(key, value, default)
    elif isinstance(value, dict) and value:
        items = cast(dict[str, Any], value)
        yield ConfigRow(key, ", ".join(items), "", differs=True)
        for name, item in items.items():
            yield from _rows(f"{key}.{name}", item, GIVEN)
    elif _has_sections(value):
        for number, item in enumerate(value):
            yield from _rows(f"{key}.{number}", item, GIVEN)
    else:
        usual = "" if default is GIVEN else _text(default)
        yield ConfigRow(key, _text(value), usual, value != default)


def _rows_of_section(key: str, section: BaseModel, default: Any) -> Iterator[ConfigRow]:
    is_alike = type(default) is type(section)
    for name, field in type(section).model_fields.items():
        if is_alike or (name == "type" and isinstance(default, Options)):
            usual = getattr(default, name)
        else:
            usual = GIVEN if field.is_required() else field.get_default(call_default_factory=True)
        yield from _rows(f"{key}.{name}" if key else name, getattr(section, name), usual)


def _has_sections(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value)


def _text(value: Any) -> str:
    """As YAML reads it, in one line."""
    plain = to_jsonable_python(value)
    if isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False)
