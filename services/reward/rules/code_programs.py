"""From an answer and its tests to programs, and from their output to passed tests. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.reward.rules.code_asserts import Check, read_checks
from services.reward.rules.code_tests import (
    PARSE_ERRORS,
    Calls,
    Pairs,
    Statements,
    Tests,
    defines_check,
    is_test,
    parse,
)
from services.reward.rules.code_values import COPIED, decode, encode
from trimaran.rewards import ReferenceUnusableError

PRELUDE = """\
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from typing import *
"""
"""Where a function is called by name the answer finds imported what judges of such tasks import."""

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
    checks: tuple[Check, ...]
    """One a line of output."""

    @property
    def num_tests(self) -> int:
        return self.checks[-1].test + 1

    def passed(self, stdout: str, exit_code: int) -> tuple[bool, ...]:
        held = [False] * len(self.checks)
        for index, (check, line) in enumerate(zip(self.checks, stdout.split("\n"), strict=False)):
            held[index] = _holds(check, line)
        failed = {check.test for check, right in zip(self.checks, held, strict=True) if not right}
        return tuple(test not in failed for test in range(self.num_tests))


@dataclass(frozen=True, slots=True)
class Judged:
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
        return f"{_bundle('code_judge')}\njudge({self._tests}, {self.token!r}, 0, 1, 2)\n"

    @property
    def source(self) -> str:
        """Where there is one sandbox for both: the first starts the second."""
        return f"{_bundle('code_judge')}\njudge_child({self._tests}, {self.answer!r})\n"

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
                        f"the tests hand the answer an object of the class {name}, and only plain"
                        " values and functions travel to the process of the answer"
                    )
        return tuple(test in ran for test in range(self.num_tests))


Program = Pair | Called | Judged


def make_programs(
    answer: str, tests: Tests, extras: Mapping[str, str], token: str, max_tests: int | None = None
) -> tuple[Program, ...]:
    """`answer` is Python source. Raises ReferenceUnusableError."""
    match tests:
        case Pairs(pairs):
            return tuple(Pair(answer, given, expected) for given, expected in pairs[:max_tests])
        case Calls(function, calls):
            checks = [
                Check(test, function, arguments, {}, _same_json, right)
                for test, (arguments, right) in enumerate(calls[:max_tests])
            ]
            return (_called(answer, PRELUDE, checks, "solve"),)
        case Statements(text):
            return (_statements(answer, text, extras, token),)


def same_output(given: str, expected: str) -> bool:
    """Line by line; white space at the end of a line and empty lines at the end do not count."""
    return _lines(given) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _statements(answer: str, text: str, extras: Mapping[str, str], token: str) -> Called | Judged:
    body = parse(extras.get("test_setup_code", "")) + parse(text)
    names: Mapping[str, str] = {}
    if defines_check(body) and not any(map(is_test, body)):
        entry = extras.get("entry_point", "")
        if not entry.isidentifier():
            raise ReferenceUnusableError(
                "check(candidate) needs the function's name in the row's column entry_point"
            )
        names = {"candidate": entry}
        body += parse("check(candidate)")
    imports = _imports(extras)
    if checks := read_checks(body, names):
        return _called(answer, imports, checks, "call")
    steps: list[tuple[str, int | None]] = [(imports, None)]
    num_tests = 0
    for statement in body:
        counts = is_test(statement)
        steps.append((ast.unparse(statement), num_tests if counts else None))
        num_tests += counts
    return Judged(_answering(), (imports, answer), tuple(steps), names, token, num_tests)


def _called(answer: str, imports: str, checks: Sequence[Check], how: str) -> Called:
    requests = [
        ["call", how, _encoded((check.function, *check.arguments)), _named(check.keywords)]
        for check in checks
    ]
    stdin = "".join(map(_line, [[imports, answer], *requests]))
    return Called(_answering(), stdin, tuple(checks))


def _named(keywords: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: encode(value, _refuse) for name, value in keywords.items()}


def _encoded(values: Sequence[Any]) -> list[Any]:
    return [encode(value, _refuse) for value in values]


def _refuse(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def _line(words: Sequence[Any]) -> str:
    return json.dumps(words) + "\n"


def _imports(extras: Mapping[str, str]) -> str:
    """MBPP's column test_imports, a JSON list of texts."""
    try:
        return "\n".join(json.loads(extras.get("test_imports") or "[]"))
    except PARSE_ERRORS:
        raise ReferenceUnusableError("the column test_imports is not a list of texts") from None


def _answering() -> str:
    return _bundle("code_harness") + "\nserve()\n"


@cache
def _bundle(name: str) -> str:
    """One text of what imports each other."""
    parts = [Path(__file__).with_name(f"{part}.py") for part in ("code_values", "code_link", name)]
    lines = "".join(part.read_text("utf-8") for part in parts).splitlines()
    ours = ("from services.", "from __future__ ")
    kept = [line for line in lines if not line.startswith(ours)]
    return "\n".join(["from __future__ import annotations", *kept])


def _holds(check: Check, line: str) -> bool:
    """The line is foreign: what no report is equals nothing."""
    try:
        if len(line) > REPORT_CHARACTERS:
            right = len(json.dumps(encode(check.expected, _refuse)))
            if len(line) > REPORT_CHARACTERS + REPORT_FACTOR * right:
                return False
        kind, value, *_changed = json.loads(line)
        given = decode(value, COPIED, _refuse)
        return kind == "value" and bool(check.holds(given, check.expected))
    except (*PARSE_ERRORS, KeyError, IndexError, AttributeError, ArithmeticError):
        return False


def _same_json(given: Any, expected: Any) -> bool:
    """What came as JSON has neither tuples nor keys other than texts."""
    given = _as_json(given)
    wrapped = isinstance(expected, list) and len(expected) == 1
    # APPS has the result itself, or a list of one that holds it.
    return given == expected or (wrapped and given == expected[0])


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(member) for member in value]
    if isinstance(value, dict):
        return {str(key): _as_json(member) for key, member in value.items()}
    return value
