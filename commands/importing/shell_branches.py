"""Which branches of a script are taken: its tests, and where in conditions, cases and groups it is.

A truth is True, False, or None where it depends on what is not known here (Kleene's three values).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

Truth = bool | None
CASE_PATTERN = re.compile(r"\(?([^)]*)\)")
UNREAD = re.compile(r"""[$`\\]|(["'])[^"']*[*?\[][^"']*\1""")
"""A pattern with a variable, or a quoted sign that counts for itself."""
NUMBERS: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": lambda one, other: one == other,
    "-ne": lambda one, other: one != other,
    "-lt": lambda one, other: one < other,
    "-le": lambda one, other: one <= other,
    "-gt": lambda one, other: one > other,
    "-ge": lambda one, other: one >= other,
}


def both(one: Truth, other: Truth) -> Truth:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def opposite(one: Truth) -> Truth:
    return None if one is None else not one


def either(one: Truth, other: Truth) -> Truth:
    return opposite(both(opposite(one), opposite(other)))


@dataclass
class Chain:
    """Commands with && and || between them, one after the other.

    Example: after `[ a = b ]` the chain's status is False; behind && the next one does not run.
    """

    status: Truth = True
    """Of what has run."""
    sign: str = ""
    """Before the next command."""

    @property
    def runs(self) -> Truth:
        """Whether the next command does."""
        if not self.sign:
            return True
        return self.status if self.sign == "&&" else opposite(self.status)

    def ran(self, status: Truth) -> None:
        if not self.sign:
            self.status = status
        else:
            join = both if self.sign == "&&" else either
            self.status = join(self.status, status)
        self.sign = ""


@dataclass
class Frame:
    """What stands around a command: `if`, `case`, a loop or `{`."""

    kind: str
    outer: Chain
    """The chain in which it stands."""
    live: Truth = True
    """Whether the branch that is read is taken, if the whole is reached."""
    taken: Truth = False
    """Whether a branch before it was."""
    word: str | None = None
    """Of a case; None where it is not known."""
    back: tuple[int, str] | None = None
    """Of a function's call: where the script goes on behind it, and the call's ending."""
    kept: dict[str, Any] = field(default_factory=dict[str, Any])
    """Variables as they were before it: of a call the local ones, of ( ) all."""

    @property
    def runs(self) -> Truth:
        return both(self.outer.runs, self.live)

    def take(self, condition: Truth) -> None:
        """The next branch, under `condition`."""
        self.live = both(opposite(self.taken), condition)
        self.taken = either(self.taken, condition)

    def match(self, patterns: str) -> None:
        """The next branch of a case: `gpu | npu`."""
        if self.word is None or UNREAD.search(patterns):
            self.take(None)
            return
        names = [name.strip().strip("\"'") for name in patterns.split("|")]
        self.take(any(fnmatchcase(self.word, name) for name in names))


def holds(words: Sequence[str | None], has_patterns: bool) -> Truth:
    """Of what stands between [ and ], or between [[ and ]], where a right side is a pattern and && and || may stand. None
    is a word that is not known.

    Example: holds(["npu", "=", "npu"], has_patterns=False) is True
    """
    for sign, join in (("||", either), ("&&", both)):
        if has_patterns and sign in words:
            place = words.index(sign)
            left = holds(words[:place], has_patterns)
            return join(left, holds(words[place + 1 :], has_patterns))
    if words and words[0] == "!":
        return opposite(holds(words[1:], has_patterns))
    known = [word for word in words if word is not None]
    if len(known) < len(words):
        return None
    match known:
        case [word]:
            return word != ""
        case ["-n", word]:
            return word != ""
        case ["-z", word]:
            return word == ""
        case [one, "=" | "==" | "!=" as sign, other]:
            same = fnmatchcase(one, other) if has_patterns else one == other
            return same == (sign != "!=")
        case [one, sign, other] if sign in NUMBERS:
            try:
                return NUMBERS[sign](int(one), int(other))
            except ValueError:
                return None
        case _:
            return None  # files, and what else there is
