"""Values as JSON and back. Its text travels into the sandbox in front of harness.py's and judge.py's;
it imports nothing of ours and needs Python 3.8."""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as a small answer runs
if TYPE_CHECKING:
    from typing import Any

LARGE = 1 << 4096
"""Python refuses to write larger integers as decimals, some time after this."""


def _made(module, name, *arguments):
    """Imported late, as few values need it."""
    return getattr(__import__(module), name)(*arguments)


def _fraction(numerator, denominator):
    # A text would be read as a decimal, and "1e100000000" takes for ever.
    if type(numerator) is not int or type(denominator) is not int:
        raise TypeError("no fraction")
    return _made("fractions", "Fraction", numerator, denominator)


COPIED = {
    "builtins.bytes": (lambda value: value.hex(), bytes.fromhex),
    "builtins.bytearray": (lambda value: value.hex(), bytearray.fromhex),
    "builtins.complex": (
        lambda value: [value.real, value.imag],
        lambda parts: complex(*parts),
    ),
    "decimal.Decimal": (str, lambda text: _made("decimal", "Decimal", text)),
    "fractions.Fraction": (
        lambda value: [value.numerator, value.denominator],
        lambda parts: _fraction(*parts),
    ),
}
"""Class: what JSON holds of a value, and the way back."""
KINDS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value, other):
    """What json.dumps takes. `other` encodes what is no plain value."""
    kind = type(value)
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        return value if -LARGE < value < LARGE else ["int", hex(value)]
    if isinstance(value, dict):
        return ["dict", [[encode(key, other), encode(value[key], other)] for key in value]]
    for name, base in KINDS.items():
        if isinstance(value, base):
            return [name, [encode(member, other) for member in value]]
    name = kind.__module__ + "." + kind.__name__
    if name in COPIED:
        return [name, COPIED[name][0](value)]
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return encode(value.tolist(), other)
    return other(value)


def decode(value, other) -> Any:
    """The way back from `encode`. Raises ValueError, TypeError or KeyError for what never came
    from there."""
    if not isinstance(value, list):
        return value
    name = value[0]
    if name == "int":
        return int(value[1], 16)
    if name == "dict":
        return {decode(key, other): decode(item, other) for key, item in value[1]}
    if name in KINDS:
        return KINDS[name]([decode(member, other) for member in value[1]])
    if name in COPIED:
        return COPIED[name][1](value[1])
    return other(value)


def no_value(value):
    """`other`, where nothing else is taken."""
    raise TypeError(type(value).__name__)


def opaque(value):
    """`other` on the way back: what could not be copied is true, is not None and equals nothing."""
    return object() if value == ["object"] else no_value(value)
