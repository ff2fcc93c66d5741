"""From an answer and its tests to what must run. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.reward.rules.code.asserts import CallCheck, read_checks
from services.reward.rules.code.tests import (
    PARSE_ERRORS,
    Calls,
    Pairs,
    Statements,
    Tests,
    defines_check,
    is_test,
    parse,
)
from services.reward.rules.code.values import encode, no_value
from services.reward.rules.code.verdicts import Called, Judged, Pair, Program, bundle
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


def make_programs(
    answer: str, tests: Tests, extras: Mapping[str, str], token: str, max_tests: int | None = None
) -> tuple[Program, ...]:
    """`answer` is Python source. Raises ReferenceUnusableError."""
    match tests:
        case Pairs(pairs):
            return tuple(Pair(answer, given, expected) for given, expected in pairs[:max_tests])
        case Calls(function, calls):
            checks = [
                CallCheck(test, function, arguments, {}, _same_json, right)
                for test, (arguments, right) in enumerate(calls[:max_tests])
            ]
            return (_called(answer, PRELUDE, checks, "solve"),)
        case Statements(text):
            return (_statements(answer, text, extras, token),)


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


def _called(answer: str, imports: str, checks: Sequence[CallCheck], how: str) -> Called:
    try:
        requests = [_request(how, check) for check in checks]
        stdin = "".join(map(_line, [[imports, answer], *requests]))
    except RecursionError:
        raise ReferenceUnusableError("an argument of a call is nested too deeply") from None
    return Called(_answering(), stdin, tuple(checks))


def _request(how: str, check: CallCheck) -> Sequence[Any]:
    given = [encode(value, no_value) for value in check.arguments]
    named = {name: encode(value, no_value) for name, value in check.keywords.items()}
    return [how, check.function, given, named]


def _line(words: Sequence[Any]) -> str:
    return json.dumps(words) + "\n"


def _imports(extras: Mapping[str, str]) -> str:
    """MBPP's column test_imports, a JSON list of texts."""
    try:
        return "\n".join(json.loads(extras.get("test_imports") or "[]"))
    except PARSE_ERRORS:
        raise ReferenceUnusableError("the column test_imports is not a list of texts") from None


def _answering() -> str:
    return bundle("harness") + "\nserve()\n"


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
