"""From what another system's file gives to a configuration of ours, and what became of each key."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from commands.importing.rows import Fate, KeyOutcome, KeyRow, Theirs
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True)
class SourceSystem:
    """One of the other systems."""

    name: str
    """On the command line."""
    title: str
    sections: tuple[str, ...]
    """A file without one of these is of another system."""
    rows: tuple[KeyRow, ...]
    always: Mapping[str, Any]
    """What its runs do without a key that says so: our keys and values."""
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Other names of keys and sections, which go before those of the table, but for a null."""

    def name_of(self, key: str) -> str:
        """The key as the table has it."""
        for alias, name in self.aliases.items():
            if key == alias or key.startswith(f"{alias}."):
                return name + key.removeprefix(alias)
        return key

    def find(self, key: str) -> KeyRow | None:
        """The row of a key: its own, or the nearest one above it that ends in `.*`."""
        by_key = {row.key: row for row in self.rows}
        name = self.name_of(key)
        ends = name.split(".")
        above = (f"{'.'.join(ends[:end])}.*" for end in range(len(ends), 0, -1))
        return next((by_key[one] for one in (name, *above) if one in by_key), None)

    def is_mine(self, keys: Sequence[str]) -> bool:
        tops = {key.partition(".")[0] for key in keys}
        return any(section in tops for section in self.sections)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a file."""

    tree: dict[str, Any]
    """A configuration of ours in plain values, not checked yet."""
    outcomes: dict[str, KeyOutcome]
    """Each key that was given, and each default that is refused or noted."""
    unknown: dict[str, str]
    """Key -> the nearest one that is known, or nothing."""
    num_defaults: int
    """How many of our keys have their value from the other system's defaults."""
    given: frozenset[str]
    """The other system's keys that were given."""

    def having(self, fate: Fate) -> dict[str, str]:
        return {key: out.text for key, out in self.outcomes.items() if out.fate == fate}

    @property
    def counts(self) -> Counter[Fate]:
        """How many of the given keys have each fate."""
        return Counter(out.fate for key, out in self.outcomes.items() if key in self.given)


def convert(system: SourceSystem, given: Mapping[str, Any], in_turns: bool = False) -> Conversion:
    """Pure, but for files that are named: whether they are there, and how many rows they have.
    `in_turns`: as `Theirs` has it."""
    sources = _sources(system, given)
    defaults = {row.key: row.default for row in system.rows if row.is_exact}
    values = {key: given[source] for key, source in sources.items()}
    theirs = Theirs(values, defaults, in_turns, sources)
    settings: dict[str, Any] = dict(system.always)
    outcomes: dict[str, KeyOutcome] = {}
    num_defaults = len(settings)
    for row in system.rows:
        if not row.is_exact:
            continue
        outcome = _outcome(row, theirs[row.key], theirs)
        settings |= outcome.settings
        if row.key in sources or outcome.fate in ("refused", "noted"):
            outcomes[sources.get(row.key, row.key)] = outcome
        if row.key not in sources:
            num_defaults += len(outcome.settings)
    unknown: dict[str, str] = {}
    for key, value in given.items():
        row, source = system.find(key), sources[system.name_of(key)]
        if row is None:
            unknown[key] = _nearest(key, [row.key for row in system.rows])
        elif key != source:
            outcomes[key] = KeyOutcome("ignored", f"{source} goes before it")
        elif not row.is_exact:
            outcomes[key] = _outcome(row, value, theirs)
    order = {key: place for place, key in enumerate(given)}
    outcomes = dict(sorted(outcomes.items(), key=lambda item: order.get(item[0], len(order))))
    return Conversion(_nested(settings), outcomes, unknown, num_defaults, frozenset(given))


def _sources(system: SourceSystem, given: Mapping[str, Any]) -> dict[str, str]:
    """The key of the table -> the given key whose value counts."""
    sources = {key: key for key in given if system.name_of(key) == key}
    for key, value in given.items():
        name = system.name_of(key)
        if name not in sources or (name != key and value is not None):
            sources[name] = key
    return sources


def _outcome(row: KeyRow, value: Any, theirs: Theirs) -> KeyOutcome:
    try:
        return row.convert(value, theirs)
    except InputError as error:
        return KeyOutcome("refused", str(error))
    except (TypeError, ValueError, ArithmeticError, OSError) as error:
        return KeyOutcome("refused", f"{value!r} is no value for it ({error})")


def _nearest(key: str, known: Sequence[str]) -> str:
    """Also one that has the same last part under another section."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    last = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2]]
    return next(iter([*near, *difflib.get_close_matches(key, last, n=1, cutoff=0.3)]), "")


def _nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *sections, last = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[last] = value
    return tree
