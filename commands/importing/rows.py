"""What becomes of one key of another system: a row of its table, and what the row says of a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from trimaran.errors import InputError

Fate = Literal["mapped", "noted", "ignored", "refused"]
FATES: tuple[Fate, ...] = ("mapped", "noted", "ignored", "refused")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one value.

    Example: Outcome("noted", "there never; here once, at the end", {"validation.every": 100})
    """

    fate: Fate
    text: str = ""
    """The note, the reason, or what to do."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Our keys, with dots, and their values."""


class Theirs:
    """The values of another system's run: what its file and command line give, else its defaults.
    `in_turns`: its trainer and rollout are to take turns here, too (`run.pools: colocated`).

    Example: Theirs({"rollout.n": 8}, {"rollout.n": 1, "rollout.top_p": 1.0})["rollout.top_p"] == 1.0
    """

    def __init__(
        self, given: Mapping[str, Any], defaults: Mapping[str, Any], in_turns: bool = False
    ) -> None:
        self.given, self.in_turns = given, in_turns
        self._defaults = defaults

    def __getitem__(self, key: str) -> Any:
        """Raises KeyError for a key that the table does not have."""
        return self.given[key] if key in self.given else self._defaults[key]

    def is_on(self, key: str) -> bool:
        """Raises InputError that names the key."""
        return is_on(self[key], key)

    def under(self, prefix: str) -> dict[str, Any]:
        """What is given below `prefix`, without it."""
        return {
            key.removeprefix(f"{prefix}."): value
            for key, value in self.given.items()
            if key.startswith(f"{prefix}.")
        }


Convert = Callable[[Any, Theirs], Outcome]


def _not_set(default: Any) -> Outcome:
    """Of a null: where theirs has a default, ours would count instead."""
    if default is None:
        return Outcome("ignored", "not set")
    shown = str(default).lower() if isinstance(default, bool) else default
    return Outcome("refused", f"null is no value for it: give one (their default is {shown})")


@dataclass(frozen=True, slots=True)
class Row:
    """One key of another system, or with `.*` at its end all below it."""

    key: str
    default: Any
    """Of theirs; None where it has none."""
    becomes: str
    """Our keys, for the document; empty where there is none."""
    text: str
    """How it is converted, why it is ignored, what to do instead; for the document."""
    convert: Convert

    @property
    def is_exact(self) -> bool:
        return not self.key.endswith(".*")


def same(
    key: str, ours: str, default: Any = None, text: str = "", to: Callable[[Any], Any] = lambda v: v
) -> Row:
    """The value itself, or what `to` makes of it. One that is not set sets nothing here."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        if value is None:
            return _not_set(default)
        return Outcome("mapped", "", {ours: to(value)})

    return Row(key, default, ours, text, convert)


def choice(key: str, ours: str, default: Any, names: Mapping[Any, Any], remedy: str) -> Row:
    """One of several names. Another one is refused."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        if value is None:
            return _not_set(default)
        if value not in names:
            return Outcome("refused", remedy)
        return Outcome("mapped", "", {ours: names[value]})

    pairs = ", ".join(f"{theirs} → {mine}" for theirs, mine in names.items())
    return Row(key, default, ours, f"{pairs}. Another one: {remedy}", convert)


def own(key: str, ours: str, default: Any, text: str, convert: Convert) -> Row:
    """A conversion of its own."""
    return Row(key, default, ours, text, convert)


def part(key: str, of: str, default: Any = None, text: str = "") -> Row:
    """It is read where `of`, another key of theirs, is converted."""
    return Row(key, default, "", text or f"with `{of}`", lambda value, theirs: Outcome("mapped"))


def ignored(key: str, reason: str, default: Any = None) -> Row:
    return Row(key, default, "", reason, lambda value, theirs: Outcome("ignored", reason))


def each(prefix: str, names: str, reason: str) -> tuple[Row, ...]:
    """`ignored` for several keys under one prefix, with one reason."""
    return tuple(ignored(f"{prefix}.{name}", reason) for name in names.split())


def told(key: str, text: str) -> Row:
    """Noted where it is given, and nothing is set."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        return Outcome("ignored", "not set") if value is None else Outcome("noted", text)

    return Row(key, None, "", text, convert)


def only(key: str, default: Any, allowed: Sequence[Any], reason: str, remedy: str) -> Row:
    """Ignored where its value is one of `allowed`, which is what we do; else refused."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        if value in allowed:
            return Outcome("ignored", reason)
        return Outcome("refused", remedy)

    shown = ", ".join("null" if value is None else str(value).lower() for value in allowed[:1])
    return Row(key, default, "", f"{shown}: {reason}. Another value is refused: {remedy}", convert)


def refused(key: str, remedy: str) -> Row:
    """Whatever its value is. Its default, None, is not looked at: nothing asked for it."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        return Outcome("ignored", "not set") if value is None else Outcome("refused", remedy)

    return Row(key, None, "", f"refused: {remedy}", convert)


def noted(
    key: str, ours: str, default: Any, text: str, to: Callable[[Any], Any] = lambda v: v
) -> Row:
    """As `same`, with a note that the user should read."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        if value is None:
            return _not_set(default)
        return Outcome("noted", text, {ours: to(value)})

    return Row(key, default, ours, text, convert)


def switch(
    key: str, default: bool, ours: str, setting: Any, text: str, off: str = "it is off"
) -> Row:
    """`setting` for `ours` where it is on, noted where there is a `text`; ignored where it is off."""

    def convert(value: Any, theirs: Theirs) -> Outcome:
        if not is_on(value):
            return Outcome("ignored", off)
        return Outcome("noted" if text else "mapped", text, {ours: setting})

    return Row(key, default, ours, text or f"true → `{setting}`", convert)


ON, OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def is_on(value: Any, key: str = "") -> bool:
    """As YAML and the shell write it; a null is off. Raises InputError for what is neither, which begins with
    `key` where that is not the row's own."""
    word = str(value).strip().lower()
    if value is None or word in OFF:
        return False
    if word in ON:
        return True
    raise InputError(
        f"{key and key + ': '}{value!r} is neither on ({', '.join(ON)}) nor off ({', '.join(OFF)}, null); give"
        " true or false"
    )
