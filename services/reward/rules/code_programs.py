"""From an answer and its tests to programs, and from their output to passed tests. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from services.reward.rules.code_tests import (
    PARSE_ERRORS,
    Calls,
    Pairs,
    Statements,
    Tests,
    called,
    defines_check,
    is_test,
    parse,
)
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


@dataclass(frozen=True, slots=True)
class Check:
    """One value that the program reports, compared outside of it."""

    test: int
    expected: Any
    is_json: bool = False
    """The expected value came as JSON, which has neither tuples nor keys other than texts."""

    def holds(self, given: Any) -> bool:
        if not self.is_json:
            return bool(given == self.expected)
        given = _as_json(given)
        wrapped = isinstance(self.expected, list) and len(self.expected) == 1
        # APPS has the result itself, or a list of one that holds it.
        return given == self.expected or (wrapped and given == self.expected[0])


@dataclass(frozen=True, slots=True)
class Program:
    """One process: Python source and its standard input, with what its output must be."""

    source: str
    stdin: str
    expected: str | None = None
    """The right standard output; None where the program reports on tests instead."""
    num_tests: int = 1
    token: str = ""
    checks: tuple[Check, ...] = ()

    def passed(self, stdout: str, exit_code: int) -> tuple[bool, ...]:
        """One a test. A program that was stopped has an exit code other than 0."""
        if self.expected is not None:
            return (exit_code == 0 and same_output(stdout, self.expected),)
        ran, values = self._read(stdout)
        failed = {
            check.test
            for index, check in enumerate(self.checks)
            if not values.get(index) or not all(map(check.holds, values[index]))
        }
        return tuple(test in ran and test not in failed for test in range(self.num_tests))

    def _read(self, stdout: str) -> tuple[set[int], dict[int, list[Any]]]:
        ran: set[int] = set()
        values: dict[int, list[Any]] = {}
        for line in stdout.split("\n"):
            match line.split(" ", 3):
                case [self.token, "ran", test] if test.isdecimal():
                    ran.add(int(test))
                case [self.token, "value", check, value] if check.isdecimal():
                    values.setdefault(int(check), []).append(_decode(value))
        return ran, values


def make_programs(
    answer: str, tests: Tests, extras: Mapping[str, str], token: str, max_tests: int | None = None
) -> tuple[Program, ...]:
    """`answer` is Python source. Raises ReferenceUnusableError."""
    match tests:
        case Pairs(pairs):
            return tuple(Program(answer, given, expected) for given, expected in pairs[:max_tests])
        case Calls(function, calls):
            return (_call_program(answer, function, calls[:max_tests], token),)
        case Statements(text):
            return (_statement_program(answer, text, extras, token),)


def same_output(given: str, expected: str) -> bool:
    """Line by line; white space at the end of a line and empty lines at the end do not count."""
    return _lines(given) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _call_program(
    answer: str, function: str, calls: Sequence[tuple[tuple[Any, ...], Any]], token: str
) -> Program:
    owner = "Solution() if 'Solution' in globals() else __import__('answer')"
    steps = [(PRELUDE, None)] + [
        (f"__report__({test}, getattr({owner}, {function!r})(*{_source(arguments)}))", test)
        for test, (arguments, _) in enumerate(calls)
    ]
    checks = tuple(Check(test, right, is_json=True) for test, (_, right) in enumerate(calls))
    return Program(_with_harness(answer, steps), token + "\n", None, len(calls), token, checks)


def _source(arguments: tuple[Any, ...]) -> str:
    """JSON knows infinities and NaN, and Python has no literal for them."""
    return f"__import__('json').loads({json.dumps(arguments)!r})"


def _statement_program(answer: str, text: str, extras: Mapping[str, str], token: str) -> Program:
    """`assert E == <literal>` becomes a report of E's value, so that the right one is not there
    for the answer to find; other tests stay as they are."""
    body = parse(text)
    if defines_check(body) and not any(map(is_test, body)):
        entry = extras.get("entry_point", "")
        if not entry.isidentifier():
            raise ReferenceUnusableError(
                "check(candidate) needs the function's name in the row's column entry_point"
            )
        body += ast.parse(f"check({entry})").body
    steps: list[tuple[str, int | None]] = [(_setup(extras), None)]
    checks: list[Check] = []
    calls_check = _tests_that_call_check(body)
    num_tests = 0
    for statement in body:
        counts = is_test(statement)
        if isinstance(statement, ast.FunctionDef) and statement.name == "check":
            if len(calls_check) == 1:
                test = calls_check[0]
                statement.body = [_reporting(inner, test, checks) for inner in statement.body]
        elif counts:
            statement = _reporting(statement, num_tests, checks)
        source = ast.unparse(ast.fix_missing_locations(statement))
        steps.append((source, num_tests if counts else None))
        num_tests += counts
    source = _with_harness(answer, steps)
    return Program(source, token + "\n", None, num_tests, token, tuple(checks))


def _tests_that_call_check(body: Sequence[ast.stmt]) -> list[int]:
    tests = filter(is_test, body)
    return [
        test
        for test, statement in enumerate(tests)
        if isinstance(statement, ast.Expr) and called(statement.value) == "check"
    ]


def _reporting(statement: ast.stmt, test: int, checks: list[Check]) -> ast.stmt:
    match statement:
        case ast.Assert(ast.Compare(left, [ast.Eq()], [right])):
            try:
                expected = ast.literal_eval(right)
                _check_plain(expected)
            except PARSE_ERRORS:
                return statement
            checks.append(Check(test, expected))
            arguments = [ast.Constant(len(checks) - 1), left]
            return ast.Expr(ast.Call(ast.Name("__report__", ast.Load()), arguments, []))
    return statement


def _check_plain(value: Any) -> None:
    """Raises TypeError for what no report can hold: bytes, complex numbers, Ellipsis."""
    if isinstance(value, list | tuple | set | dict):
        for member in value:
            _check_plain(member)
            if isinstance(value, dict):
                _check_plain(value[member])
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(type(value).__name__)


def _setup(extras: Mapping[str, str]) -> str:
    """MBPP's columns beside the tests: test_imports (a JSON list) and test_setup_code."""
    try:
        imports = "\n".join(json.loads(extras.get("test_imports") or "[]"))
    except PARSE_ERRORS:
        raise ReferenceUnusableError("the column test_imports is not a list of texts") from None
    return imports + "\n" + extras.get("test_setup_code", "")


def _with_harness(answer: str, steps: Sequence[tuple[str, int | None]]) -> str:
    return f"{_harness()}\n\nrun({answer!r}, {list(steps)!r})\n"


@cache
def _harness() -> str:
    return Path(__file__).with_name("code_harness.py").read_text("utf-8")


def _decode(text: str) -> Any:
    """What `encode` of the harness made. The text is foreign: what is not that equals nothing."""
    try:
        return _rebuild(json.loads(text))
    except (*PARSE_ERRORS, KeyError):
        return _NOTHING


_NOTHING = object()
_KINDS = {"list": list, "tuple": tuple, "set": set}


def _rebuild(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    kind, members = value
    rebuilt = [_rebuild(member) for member in members]
    return dict(rebuilt) if kind == "dict" else _KINDS[kind](rebuilt)


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(member) for member in value]
    if isinstance(value, dict):
        return {str(key): _as_json(member) for key, member in value.items()}
    return value
