"""The value of an expression, computed from that expression alone.

math-verify and mathruler ask whether reference minus answer is 0. A difference can lose the
reference: infinity swallows what it is subtracted from, and so does a sum whose digits cancel. Such an answer would be right for every reference. A value
is computed without the reference, so it can be near one reference only.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import sympy
from sympy.concrete.expr_with_limits import ExprWithLimits
from sympy.core.function import AppliedUndef

DIGITS = (60, 100)
"""An expression is computed with either. Where the results differ, its digits cancel."""
TOLERANCE = 2e-6
"""Relative to the greater of 1 and the value. The libraries compare six decimals or more."""
MAX_EXPONENT = 1_000_000
"""Natural logarithm of what a power may reach, and argument of functions that may grow."""
MAX_EXACT_BITS = 10_000
SNAPPED, ALMOST = 10**9, sympy.Float("1e-45", 10)
"""Below SNAPPED, what is ALMOST an integer is one: else floor(log(100, 10)) might be 1."""

TO_BE_DONE = (ExprWithLimits, sympy.Limit, sympy.Derivative, sympy.Subs)
GROW_SLOWLY = (
    *(sympy.log, sympy.Abs, sympy.floor, sympy.ceiling, sympy.sign, sympy.re, sympy.im),
    *(sympy.conjugate, sympy.arg, sympy.Max, sympy.Min, sympy.Mod, sympy.atan),
)


class _NoValueError(Exception):
    pass


def near(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Both have a value, and it is the same to six decimals."""
    first, second = value(a), value(b)
    if first is None or second is None:
        return False
    return _close(first, second)


@lru_cache(maxsize=256)
def value(expression: sympy.Expr) -> sympy.Expr | None:
    """A finite complex number: the expression at one fixed point of its symbols.

    None for what is infinite or undefined somewhere inside, greater than exp(MAX_EXPONENT), so
    close to cancelling that DIGITS do not suffice, or no number at all.
    """
    try:
        rough, fine = (_compute(expression, digits) for digits in DIGITS)
        return fine if _close(rough, fine) else None
    except MemoryError:
        raise
    except Exception:  # any function of sympy may raise anything: it has no value there
        return None


def _close(a: sympy.Expr, b: sympy.Expr) -> bool:
    difference, size = (abs(sympy.N(x, 30)) for x in (a - b, b))
    return bool(difference <= TOLERANCE * max(sympy.Integer(1), size))


def _compute(expression: Any, digits: int) -> sympy.Expr:
    """Bottom up, so that no step is taken whose size is not known before."""
    if isinstance(expression, sympy.Rational):
        return expression
    if isinstance(expression, sympy.Symbol):
        return _point(expression.name, digits)
    if isinstance(expression, TO_BE_DONE):
        done = expression.doit()
        if done.has(*TO_BE_DONE):
            raise _NoValueError
        return _compute(done, digits)
    if not isinstance(expression, sympy.Expr) or isinstance(expression, sympy.MatrixExpr):
        raise _NoValueError
    arguments = [_compute(argument, digits) for argument in expression.args]
    return _finite(_apply(expression, arguments, digits), digits)


def _apply(expression: sympy.Expr, arguments: list[sympy.Expr], digits: int) -> Any:
    if not arguments:
        return expression  # pi, e, i, a decimal, infinity
    if isinstance(expression, AppliedUndef):
        shown = ", ".join(str(sympy.N(argument, 20)) for argument in arguments)
        return _point(f"{expression.func}({shown})", digits)
    if isinstance(expression, sympy.Pow):
        base, exponent = arguments
        return _power(base, exponent, digits)
    if isinstance(expression, sympy.Function) and not isinstance(expression, GROW_SLOWLY):
        for argument in arguments:
            _bound(argument)
    return expression.func(*arguments)


def _power(base: sympy.Expr, exponent: sympy.Expr, digits: int) -> sympy.Expr:
    if base.is_zero:
        return sympy.Pow(base, exponent)
    log = sympy.N(sympy.log(sympy.N(base, digits)), digits)
    _bound(exponent * log)
    if isinstance(base, sympy.Rational):
        bits = (base.p * base.q).bit_length()
        if bits * abs(exponent) < MAX_EXACT_BITS:
            return sympy.Pow(base, exponent)
    return sympy.Pow(sympy.N(base, digits), exponent)


def _bound(argument: sympy.Expr) -> None:
    if not abs(sympy.N(argument, 15)) <= MAX_EXPONENT:
        raise _NoValueError


def _finite(result: Any, digits: int) -> sympy.Expr:
    """As a rational, or as floats with so many digits; an integer where it is almost one."""
    if not isinstance(result, sympy.Rational):
        result = sympy.N(result, digits)
    real, imaginary = result.as_real_imag()
    parts = [_snap(part) for part in (real, imaginary)]
    return parts[0] + parts[1] * sympy.I


def _snap(part: Any) -> sympy.Expr:
    if isinstance(part, sympy.Rational):
        return part
    if not isinstance(part, sympy.Float):
        raise _NoValueError
    if abs(part) > SNAPPED:
        return part
    whole = part.round()
    return whole if abs(part - whole) < ALMOST else part


@lru_cache(maxsize=64)
def _point(name: str, digits: int) -> sympy.Expr:
    """Between 1 and 2, for a symbol or for what is not known of a function; the same always."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    fraction = sympy.Rational(int.from_bytes(digest[:4], "big"), 2**32)
    return sympy.Float(1 + fraction, digits)
