"""What runs for one answer, and what its output says of the tests. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.reward.rules.code.tests import PARSE_ERRORS
from services.reward.rules.code.values import decode, opaque
from trimaran.rewards import ReferenceUnusableError

REPORT_CHARACTERS, REPORT_FACTOR = 1 << 16, 16
"""A longer report of a result, beside that of the expected one, is not read: a set of
100,000 numbers of one hash takes Python more than a minute to build."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A process with the answer as its main program."""

    source: str
    stdin: str
    expected: str
    """The right standard output."""
    num_tests: int = 1

    def passed(self, stdout: str, exit_code: int) -> tuple[bool, ...]:
        """One a test. A program that was stopped has an exit code other than 0."""
        return (exit_code == 0 and same_output(stdout, self.expected),)


@dataclass(frozen=True, slots=True)
class Called:
    """A process with the answer in it, which makes the calls that stand in `stdin`."""

    source: str
    stdin: str
    expected: tuple[Any, ...]
    """What each call must give; one line of output reports what it gave."""

    @property
    def num_tests(self) -> int:
        return len(self.expected)

    def passed(self, stdout: str, exit_code: int) -> tuple[bool, ...]:
        lines = stdout.split("\n") + [""] * self.num_tests
        return tuple(_gives(line, right) for right, line in zip(self.expected, lines, strict=False))


@dataclass(frozen=True, slots=True)
class JudgedTests:
    """A process with the tests in it, and one with the answer that it asks."""

    answer: str
    """Source of the second."""
    first: tuple[str, str]
    """What that is sent first: imports and the answer."""
    steps: tuple[tuple[str, int | None], ...]
    """Statements of the first, each with the number of its test or None."""
    names: Mapping[str, str]
    token: str
    """The mark of its own lines."""
    num_tests: int

    @property
    def judge(self) -> str:
        """Source of the first. The second is its standard input and output."""
        return f"{bundle('judge')}\njudge({self._tests}, {self.token!r}, 0, 1, 2)\n"

    @property
    def source(self) -> str:
        """Where there is one sandbox for both: the first starts the second."""
        return f"{bundle('judge')}\njudge_child({self._tests}, {self.answer!r})\n"

    @property
    def stdin(self) -> str:
        return self.token + "\n"

    @property
    def _tests(self) -> str:
        return f"{self.steps!r}, {dict(self.names)!r}, {self.first!r}"

    def passed(self, stdout: str, exit_code: int) -> tuple[bool, ...]:
        """Raises ReferenceUnusableError."""
        ran: set[int] = set()
        for line in stdout.split("\n"):
            match line.split(" ", 2):
                case [self.token, "passed", test] if test.isdecimal():
                    ran.add(int(test))
                case [self.token, "unusable", name]:
                    raise ReferenceUnusableError(
                        f"the tests hand the answer a {name}, and only plain values are copied to"
                        " the process of the answer"
                    )
        return tuple(test in ran for test in range(self.num_tests))


Program = Pair | Called | JudgedTests


def same_output(given: str, expected: str) -> bool:
    """Line by line; white space at the end of a line and empty lines at the end do not count."""
    return _lines(given) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


@cache
def bundle(name: str) -> str:
    """One text of what imports each other."""
    parts = [Path(__file__).with_name(f"{part}.py") for part in ("values", name)]
    lines = "".join(part.read_text("utf-8") for part in parts).splitlines()
    ours = ("from services.", "from __future__ ")
    kept = [line for line in lines if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *kept])


def _gives(line: str, expected: Any) -> bool:
    """The line is foreign: what no report is equals nothing."""
    try:
        if len(line) > REPORT_CHARACTERS + REPORT_FACTOR * len(json.dumps(expected)):
            return False
        kind, value, *_changed = json.loads(line)
        given = _as_json(decode(value, opaque))
        wrapped = isinstance(expected, list) and len(expected) == 1
        # APPS has the result itself, or a list of one that holds it.
        same = given == expected or (wrapped and given == expected[0])
        return kind == "value" and same
    except (*PARSE_ERRORS, KeyError, IndexError, AttributeError, ArithmeticError):
        return False


def _as_json(value: Any) -> Any:
    """What came as JSON has neither tuples nor keys other than texts."""
    if isinstance(value, list | tuple):
        return [_as_json(member) for member in value]
    if isinstance(value, dict):
        return {str(key): _as_json(member) for key, member in value.items()}
    return value
