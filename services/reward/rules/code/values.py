"""Values as JSON and back. Its text travels into the sandbox in front of link.py's; it imports
nothing of ours and needs Python 3.8."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # importing typing takes as long as a small answer runs
if TYPE_CHECKING:
    from typing import Any

LARGE = 1 << 4096
"""Python refuses to write larger integers as decimals, some time after this."""
NUMERIC_KINDS = "biufcU"
"""Of numpy's arrays, those whose members can be copied."""


def imported(module, name):
    """Late, as few values need it."""
    __import__(module)
    return getattr(sys.modules[module], name)


def _array(parts):
    members, kind = parts
    made = imported("numpy", "dtype")(kind)
    if made.kind not in NUMERIC_KINDS:
        raise ValueError("an array of another kind: " + kind)
    return imported("numpy", "array")(members, made)


def _fraction(numerator, denominator):
    # A text would be read as a decimal, and "1e100000000" takes for ever.
    if type(numerator) is not int or type(denominator) is not int:
        raise TypeError("no fraction")
    return imported("fractions", "Fraction")(numerator, denominator)


COPIED = {
    "builtins.bytes": (lambda value: value.hex(), bytes.fromhex),
    "builtins.bytearray": (lambda value: value.hex(), bytearray.fromhex),
    "builtins.complex": (
        lambda value: [value.real, value.imag],
        lambda parts: complex(*parts),
    ),
    "decimal.Decimal": (str, lambda text: imported("decimal", "Decimal")(text)),
    "fractions.Fraction": (
        lambda value: [value.numerator, value.denominator],
        lambda parts: _fraction(*parts),
    ),
}
"""Class: what JSON holds of a value, and the way back."""
COPIED_BETWEEN = {
    **COPIED,
    "builtins.range": (
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*parts),
    ),
    "numpy.ndarray": (lambda value: [value.tolist(), value.dtype.str], _array),
}
"""The worker takes none of what is added: a small text could be a large array."""
_TYPES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in _TYPES}
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
    if name in COPIED_BETWEEN:
        if name != "numpy.ndarray" or value.dtype.kind in NUMERIC_KINDS:
            return [name, COPIED_BETWEEN[name][0](value)]
    elif name == "collections.deque":
        return ["deque", [encode(member, other) for member in value], value.maxlen]
    elif kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), other)
    elif kind is type and TYPES.get(value.__name__) is value:
        return ["type", value.__name__]
    return other(value)


def decode(value, copied, other) -> Any:
    """The way back from `encode`. Raises ValueError, TypeError or KeyError for what never came
    from there."""
    if not isinstance(value, list):
        return value
    name, members = value[0], value[1]
    if name == "int":
        return int(members, 16)
    if name == "dict":
        pairs = ((decode(key, copied, other), decode(item, copied, other)) for key, item in members)
        return dict(pairs)
    if name in KINDS:
        return KINDS[name]([decode(member, copied, other) for member in members])
    if name in copied:
        return copied[name][1](members)
    return other(value)


def no_value(value):
    """`other`, where nothing else is taken."""
    raise TypeError(type(value).__name__)
