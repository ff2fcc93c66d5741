"""The rows of a system's table: what becomes of one of its keys, and of the value that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trimaran.errors import InputError

Fate = Literal["mapped", "noted", "ignored", "refused"]
FATES: tuple[Fate, ...] = ("mapped", "noted", "ignored", "refused")
ON, OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class KeyOutcome:
    """What becomes of one value. `becomes`, `nothing` and `deny` make it."""

    fate: Fate
    text: str = ""
    """The note, the reason, or what to do."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Our keys, with dots, and their values."""


def becomes(settings: Mapping[str, Any], note: str = "") -> KeyOutcome:
    """Example: becomes({"validation.every": 100}, "there never; here once, at the end")"""
    return KeyOutcome("noted" if note else "mapped", note, settings)


def nothing(reason: str) -> KeyOutcome:
    return KeyOutcome("ignored", reason)


def deny(remedy: str) -> KeyOutcome:
    return KeyOutcome("refused", remedy)


NOT_SET = nothing("not set")


class Theirs:
    """The values of another system's run: what its file and command line give, else its defaults.
    `in_turns`: its trainer and rollout are to take turns here, too (`run.pools: colocated`).

    Example: Theirs({"rollout.n": 8}, {"rollout.n": 1, "rollout.top_p": 1.0})["rollout.top_p"] == 1.0
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        defaults: Mapping[str, Any],
        in_turns: bool = False,
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """`sources`: the table's keys -> those that the user gave for them."""
        self.given, self.in_turns = given, in_turns
        self._defaults, self._sources = defaults, sources or {}

    def __getitem__(self, key: str) -> Any:
        """Raises KeyError for a key that the table does not have."""
        return self.given[key] if key in self.given else self._defaults[key]

    def size(self, key: str) -> int:
        """A number of parts, of which a null is 1."""
        return int(self[key] or 1)

    def is_on(self, key: str) -> bool:
        """Raises InputError that names the key."""
        return is_on(self[key], self._sources.get(key, key))

    def under(self, prefix: str) -> dict[str, Any]:
        """What is given below `prefix`, without it."""
        return {
            key.removeprefix(f"{prefix}."): value
            for key, value in self.given.items()
            if key.startswith(f"{prefix}.")
        }


Convert = Callable[[Any, Theirs], KeyOutcome]


@dataclass(frozen=True, slots=True)
class KeyRow:
    """One key of another system, or with `.*` at its end all below it that have no row of their own."""

    key: str
    default: Any
    """Theirs; None where it has none."""
    convert: Convert

    @property
    def is_exact(self) -> bool:
        return not self.key.endswith(".*")


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


def under(prefix: str, *rows: KeyRow) -> tuple[KeyRow, ...]:
    """The rows of a section."""
    return tuple(replace(row, key=f"{prefix}.{row.key}") for row in rows)


def own(key: str, default: Any, convert: Convert) -> KeyRow:
    """A conversion of its own."""
    return KeyRow(key, default, convert)


def same(
    key: str,
    ours: str,
    default: Any = None,
    to: Callable[[Any], Any] = lambda value: value,
    note: str = "",
) -> KeyRow:
    """The value itself, or what `to` makes of it, where that is not None. A null sets nothing, and is refused
    where theirs has a default, because ours would count instead."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value is not None:
            made = to(value)
            return (
                nothing("ours is the same without the key")
                if made is None
                else becomes({ours: made}, note)
            )
        shown = str(default).lower() if isinstance(default, bool) else default
        missing = f"null is no value for it: give one (their default is {shown})"
        return NOT_SET if default is None else deny(missing)

    return KeyRow(key, default, convert)


def choice(key: str, ours: str, default: Any, names: Mapping[Any, Any], why: str = "") -> KeyRow:
    """One of several names, with what it is for `ours` or all that it becomes. Another one is refused."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        if value in names:
            made = names[value]
            return made if isinstance(made, KeyOutcome) else becomes({ours: made})
        return deny(f"{why}give one of {', '.join(map(str, names))} (given: {value})")

    return KeyRow(key, default, convert)


def switch(key: str, ours: str, setting: Any, note: str = "") -> KeyRow:
    """`setting` for `ours` where it is on; their default is off."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        return becomes({ours: setting}, note) if is_on(value) else nothing("it is off")

    return KeyRow(key, False, convert)


def only(key: str, allowed: Sequence[Any], remedy: str, default: Any = None) -> KeyRow:
    """Ignored where its value is one of `allowed`, which is what we do; else refused. Their default is the
    first one, where no other is given."""

    def convert(value: Any, theirs: Theirs) -> KeyOutcome:
        is_so = value in allowed or (value is None and default is None)
        return nothing("it is so here") if is_so else deny(remedy)

    return KeyRow(key, allowed[0] if default is None else default, convert)


def refused(key: str, remedy: str) -> KeyRow:
    """Whatever its value is, but for a null: nothing asked for it."""
    return KeyRow(key, None, lambda value, theirs: NOT_SET if value is None else deny(remedy))


def noted(key: str, text: str) -> KeyRow:
    """Where it is given it sets nothing, and the user reads `text`."""
    return KeyRow(key, None, lambda value, theirs: NOT_SET if value is None else becomes({}, text))


def parts(defaults: Mapping[str, Any]) -> Iterator[KeyRow]:
    """Keys that are read where another one is converted, with their defaults."""
    for key, default in defaults.items():
        yield KeyRow(key, default, lambda value, theirs: becomes({}))


def ignored(keys: str, reason: str) -> Iterator[KeyRow]:
    """Keys that have no meaning here, and with which nothing is lost."""
    for key in keys.split():
        yield KeyRow(key, None, lambda value, theirs: nothing(reason))
