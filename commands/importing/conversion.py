"""From what another system's file gives to a configuration of ours, and what became of each key."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commands.importing.rows import Fate, Outcome, Row, Theirs
from trimaran.errors import InputError


@dataclass(frozen=True, slots=True)
class System:
    """One of the other systems.

    Example: System("easyr1", "EasyR1", ("worker", "trainer"), ROWS)
    """

    name: str
    """On the command line."""
    title: str
    sections: tuple[str, ...]
    """Of its files: those without one of them are of another system."""
    rows: tuple[Row, ...]
    always: Mapping[str, Any]
    """What its runs do without a key that says so: our keys and values."""

    def find(self, key: str) -> Row | None:
        """The row of a key: its own, or the nearest one above it that ends in `.*`."""
        by_key = {row.key: row for row in self.rows}
        parts = key.split(".")
        above = (f"{'.'.join(parts[:end])}.*" for end in range(len(parts), 0, -1))
        return next((by_key[name] for name in (key, *above) if name in by_key), None)

    def is_mine(self, keys: Sequence[str]) -> bool:
        tops = {key.partition(".")[0] for key in keys}
        return any(section in tops for section in self.sections)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What became of a file."""

    tree: dict[str, Any]
    """A configuration of ours in plain values, not checked yet."""
    outcomes: dict[str, Outcome]
    """Of each key that was given, and of those defaults that are refused or noted."""
    unknown: dict[str, str]
    """Key -> the nearest one that is known, or nothing."""
    num_defaults: int
    """Of our keys that have their value from the other system's defaults."""
    given: frozenset[str]
    """The other system's keys that were given."""

    def having(self, fate: Fate) -> dict[str, str]:
        return {key: out.text for key, out in self.outcomes.items() if out.fate == fate}

    @property
    def counts(self) -> Counter[Fate]:
        """Of the keys that were given."""
        return Counter(out.fate for key, out in self.outcomes.items() if key in self.given)


def convert(system: System, given: Mapping[str, Any], in_turns: bool = False) -> Conversion:
    """Pure, but for files that are named: whether they are there, and how many rows they have.
    `in_turns`: as `Theirs` has it."""
    defaults = {row.key: row.default for row in system.rows if row.is_exact}
    theirs = Theirs(given, defaults, in_turns)
    settings: dict[str, Any] = dict(system.always)
    outcomes: dict[str, Outcome] = {}
    num_defaults = len(settings)
    for row in system.rows:
        if not row.is_exact:
            continue
        outcome = _outcome(row, row.key, theirs)
        settings |= outcome.settings
        if row.key in given or outcome.fate in ("refused", "noted"):
            outcomes[row.key] = outcome
        if row.key not in given:
            num_defaults += len(outcome.settings)
    unknown: dict[str, str] = {}
    for key in given:
        row = system.find(key)
        if row is None:
            unknown[key] = _nearest(key, [row.key for row in system.rows])
        elif not row.is_exact:
            outcomes[key] = _outcome(row, key, theirs)
    order = {key: place for place, key in enumerate(given)}
    outcomes = dict(sorted(outcomes.items(), key=lambda item: order.get(item[0], len(order))))
    return Conversion(_nested(settings), outcomes, unknown, num_defaults, frozenset(given))


def _outcome(row: Row, key: str, theirs: Theirs) -> Outcome:
    value = theirs[key]
    try:
        return row.convert(value, theirs)
    except InputError as error:
        return Outcome("refused", str(error))
    except (TypeError, ValueError, ArithmeticError, OSError) as error:
        return Outcome("refused", f"{value!r} is no value for it ({error})")


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
