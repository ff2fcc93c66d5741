"""The formats of tests that datasets have. Pure.

Facts on them: APPS' input_output (hendrycks/apps), verl's prime_code (testing_util.py),
LiveCodeBench's list of cases, MBPP's test_list and HumanEval's test with its entry_point.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.rewards import ReferenceUnusableError

PARSE_ERRORS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
"""What foreign text can do to a parser."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Standard input and the right standard output."""

    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Calls:
    """Arguments and the right result of one function, or method of `class Solution`."""

    function: str
    calls: tuple[tuple[tuple[Any, ...], Any], ...]


@dataclass(frozen=True, slots=True)
class Statements:
    """Python with assert statements, or with check(candidate)."""

    text: str


Tests = Pairs | Calls | Statements


def read_tests(reference: str) -> Tests:
    """Raises ReferenceUnusableError."""
    try:
        found = json.loads(reference)
    except PARSE_ERRORS:
        return _statements(reference)
    if isinstance(found, list) and found and all(isinstance(test, str) for test in found):
        return _statements("\n".join(found))
    if isinstance(found, list) and found and all(isinstance(test, dict) for test in found):
        metadata = found[0].get("metadata")
        found = {
            "inputs": [test.get("input") for test in found],
            "outputs": [test.get("output") for test in found],
            "fn_name": metadata.get("func_name") if isinstance(metadata, dict) else None,
        }
    if not isinstance(found, dict) or not {"inputs", "outputs"} <= found.keys():
        raise ReferenceUnusableError(
            'tests are JSON {"inputs": […], "outputs": […]}, a JSON list of assert statements, or'
            " Python test code"
        )
    return _inputs_outputs(found["inputs"], found["outputs"], found.get("fn_name"))


def _inputs_outputs(inputs: Any, outputs: Any, function: Any) -> Tests:
    if not (isinstance(inputs, list) and isinstance(outputs, list)):
        raise ReferenceUnusableError("inputs and outputs are not lists")
    if not inputs or len(inputs) != len(outputs):
        raise ReferenceUnusableError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    if function is None:
        texts = [(_text(given), _text(right)) for given, right in zip(inputs, outputs, strict=True)]
        return Pairs(tuple(texts))
    if not (isinstance(function, str) and function.isidentifier()):
        raise ReferenceUnusableError(f"fn_name {function!r} is not a name")
    pairs = zip(inputs, outputs, strict=True)
    return Calls(function, tuple((_arguments(given), _result(right)) for given, right in pairs))


def _text(entry: Any) -> str:
    if isinstance(entry, list):
        return "\n".join(map(_text, entry))
    if not isinstance(entry, str | int | float):
        raise ReferenceUnusableError(f"an input or output is neither text nor lines: {entry!r:.80}")
    return str(entry)


def _arguments(entry: Any) -> tuple[Any, ...]:
    """A list of them, or a text with one as JSON a line."""
    try:
        return tuple(entry if isinstance(entry, list) else map(json.loads, entry.splitlines()))
    except (*PARSE_ERRORS, AttributeError):
        raise ReferenceUnusableError(f"not arguments, one as JSON a line: {entry!r:.80}") from None


def _result(entry: Any) -> Any:
    try:
        return json.loads(entry) if isinstance(entry, str) else entry
    except PARSE_ERRORS:
        raise ReferenceUnusableError(f"the output of a call is not JSON: {entry!r:.80}") from None


def _statements(text: str) -> Statements:
    body = parse(text)
    if not any(map(is_test, body)) and not defines_check(body):
        raise ReferenceUnusableError(
            "the tests have neither assert statements nor check(candidate)"
        )
    return Statements(text)


def parse(text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except PARSE_ERRORS as error:
        raise ReferenceUnusableError(f"the tests are neither JSON nor Python: {error}") from None


def is_test(statement: ast.stmt) -> bool:
    defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return not defines and (
        any(isinstance(node, ast.Assert) for node in ast.walk(statement))
        or (isinstance(statement, ast.Expr) and called(statement.value) == "check")
    )


def called(node: ast.expr) -> str | None:
    match node:
        case ast.Call(ast.Name(name)):
            return name
    return None


def defines_check(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(one, ast.FunctionDef) and one.name == "check" for one in body)
