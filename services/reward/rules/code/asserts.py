"""Test statements that are calls compared with literals, as calls and checks. Pure.

`assert f(1, [2]) == 3`, `assert not f(0)`, `assert f(1) is None`, and check(candidate) of nothing
else: 967 of the 974 rows of MBPP and 146 of the 164 of HumanEval.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.reward.rules.code.tests import PARSE_ERRORS, called, is_test

Relation = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class CallCheck:
    """What one call must give, compared outside of the process that was called."""

    test: int
    function: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    holds: Relation
    """Of what it gave and `expected`."""
    expected: Any


COMPARISONS: Mapping[type[ast.cmpop], Relation] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


class _OtherFormError(ValueError):
    """These tests need more than calls."""


def read_checks(body: Sequence[ast.stmt], names: Mapping[str, str]) -> tuple[CallCheck, ...] | None:
    """None where the tests must run as they are. `names` has what the answer calls a name."""
    bound = set(_bound(body))
    if "*" in bound:
        return None
    checks: list[CallCheck] = []
    for test, statement in enumerate(filter(is_test, body)):
        try:
            found = [
                _check(one, names.get(name, name), bound, test)
                for one, name in _asserts(statement, body)
            ]
        except (_OtherFormError, *PARSE_ERRORS):
            return None
        if not found:
            return None
        checks += found
    if not all(is_test(statement) or _does_nothing(statement) for statement in body):
        return None
    return tuple(checks)


def _asserts(statement: ast.stmt, body: Sequence[ast.stmt]) -> Iterator[tuple[ast.Assert, str]]:
    """Those that the statement runs, and the function that is `candidate` in them, if any."""
    match statement:
        case ast.Assert():
            yield statement, ""
        case ast.Expr(ast.Call(ast.Name("check"), [ast.Name(function)], [])):
            for inner in _only_check(body).body:
                if isinstance(inner, ast.Assert):
                    if not (isinstance(inner.test, ast.Constant) and inner.test.value):
                        yield inner, function
                elif not _does_nothing(inner):
                    raise _OtherFormError
        case _:
            raise _OtherFormError


def _only_check(body: Sequence[ast.stmt]) -> ast.FunctionDef:
    match [one for one in body if isinstance(one, ast.FunctionDef) and one.name == "check"]:
        case [ast.FunctionDef(args=ast.arguments([], [ast.arg("candidate")])) as check]:
            return check
    raise _OtherFormError


def _check(statement: ast.Assert, candidate: str, bound: set[str], test: int) -> CallCheck:
    def made(call: ast.expr, holds: Relation, expected: Any) -> CallCheck:
        name = called(call)
        if not isinstance(call, ast.Call) or name is None:
            raise _OtherFormError
        name = candidate if candidate and name == "candidate" else name
        if name in bound or None in (keywords := {one.arg: one.value for one in call.keywords}):
            raise _OtherFormError
        named = {str(word): _literal(value) for word, value in keywords.items()}
        return CallCheck(test, name, tuple(map(_literal, call.args)), named, holds, expected)

    match statement.test:
        case ast.Compare(left, [comparison], [right]) if isinstance(left, ast.Call):
            expected = _literal(right)
            if isinstance(comparison, ast.Is | ast.IsNot) and not _is_single(expected):
                raise _OtherFormError
            if type(comparison) not in COMPARISONS:
                raise _OtherFormError
            return made(left, COMPARISONS[type(comparison)], expected)
        case ast.Compare(left, [ast.Eq()], [right]):
            return made(right, operator.eq, _literal(left))
        case ast.UnaryOp(ast.Not(), call):
            return made(call, lambda given, _: not given, None)
        case call:
            return made(call, lambda given, _: bool(given), None)


def _literal(node: ast.expr) -> Any:
    value = ast.literal_eval(node)
    _check_plain(value)
    return value


def _check_plain(value: Any) -> None:
    if isinstance(value, list | tuple | set | dict):
        for member in value:
            _check_plain(member)
            if isinstance(value, dict):
                _check_plain(value[member])
    elif value is ...:
        raise _OtherFormError


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _bound(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name) | ast.ClassDef(name) | ast.AsyncFunctionDef(name):
                yield name
            case ast.Assign(targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
            case ast.Import(aliases) | ast.ImportFrom(_, aliases):
                yield from (alias.asname or alias.name for alias in aliases)


def _does_nothing(statement: ast.stmt) -> bool:
    """To the calls: it binds a name that no check uses, or is a docstring."""
    match statement:
        case ast.Expr(ast.Constant()) | ast.Pass() | ast.Import() | ast.ImportFrom():
            return True
        case ast.FunctionDef():
            return not statement.decorator_list
        case ast.Assign(targets, value):
            try:
                _literal(value)
            except (_OtherFormError, *PARSE_ERRORS):
                return False
            return all(isinstance(target, ast.Name) for target in targets)
    return False
