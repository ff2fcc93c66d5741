"""From an answer and its tests to what must run. Pure."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

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
from services.reward.rules.code.verdicts import Called, JudgedTests, Pair, Program, bundle
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
            return (_called(answer, function, calls[:max_tests]),)
        case Statements(text):
            return (_statements(answer, text, extras, token),)


def _statements(answer: str, text: str, extras: Mapping[str, str], token: str) -> JudgedTests:
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
    steps: list[tuple[str, int | None]] = [(imports, None)]
    num_tests = 0
    for statement in body:
        counts = is_test(statement)
        steps.append((ast.unparse(statement), num_tests if counts else None))
        num_tests += counts
    return JudgedTests(_answering(), (imports, answer), tuple(steps), names, token, num_tests)


def _called(answer: str, function: str, calls: Sequence[tuple[tuple[Any, ...], Any]]) -> Called:
    try:
        given = [[encode(value, no_value) for value in arguments] for arguments, _ in calls]
        lines = [[PRELUDE, answer], *(["solve", function, values, {}] for values in given)]
        stdin = "".join(json.dumps(line) + "\n" for line in lines)
    except RecursionError:
        raise ReferenceUnusableError("an argument of a call is nested too deeply") from None
    return Called(_answering(), stdin, tuple(right for _, right in calls))


def _imports(extras: Mapping[str, str]) -> str:
    """MBPP's column test_imports, a JSON list of texts."""
    try:
        return "\n".join(json.loads(extras.get("test_imports") or "[]"))
    except PARSE_ERRORS:
        raise ReferenceUnusableError("the column test_imports is not a list of texts") from None


def _answering() -> str:
    return bundle("harness") + "\nserve()\n"
