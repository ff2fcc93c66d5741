"""Two processes that call each other's functions, by lines of JSON. Its text travels into the
sandbox in front of code_harness.py and code_judge.py; it imports nothing of ours and needs
Python 3.8.

A line is ["call", function, arguments, keywords], or what answers it: ["value", result, changed]
or ["error", class, text]. Values are copied. What cannot be copied goes as a number, and is a
Remote on the other side. Nothing that arrives can make this side run code which it did not offer.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from itertools import islice

TYPE_CHECKING = False  # importing typing takes as long as a small answer runs
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 10_000
"""Of an iterator that is copied."""
LARGE = 1 << 4096
"""Python refuses to write larger integers as decimals, some time after this."""
NUMERIC_KINDS = "biufcU"
"""Of numpy's arrays, those whose members can be copied."""


def _imported(module, name):
    __import__(module)
    return getattr(sys.modules[module], name)


def _array(parts):
    members, kind = parts
    made = _imported("numpy", "dtype")(kind)
    if made.kind not in NUMERIC_KINDS:
        raise ValueError("an array of another kind: " + kind)
    return _imported("numpy", "array")(members, made)


COPIED = {
    "bytes": (lambda value: value.hex(), bytes.fromhex),
    "bytearray": (lambda value: value.hex(), bytearray.fromhex),
    "complex": (lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
}
"""Name of a class: what JSON holds of a value, and the way back."""
COPIED_BETWEEN = {
    **COPIED,
    "range": (
        lambda value: [value.start, value.stop, value.step],
        lambda parts: range(*parts),
    ),
    "Decimal": (str, lambda text: _imported("decimal", "Decimal")(text)),
    "Fraction": (
        lambda value: [value.numerator, value.denominator],
        lambda parts: _imported("fractions", "Fraction")(*parts),
    ),
    "ndarray": (lambda value: [value.tolist(), value.dtype.str], _array),
}
"""The worker takes none of these."""
_TYPES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset)
TYPES: dict[str, type[Any]] = {kind.__name__: kind for kind in _TYPES}
KINDS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
)


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
    name = kind.__name__
    if name in COPIED_BETWEEN:
        if name != "ndarray" or value.dtype.kind in NUMERIC_KINDS:
            return [name, COPIED_BETWEEN[name][0](value)]
    elif name == "deque":
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


class AnswerError(Exception):
    """What the other side raised, where it is no exception that Python itself has."""


class CannotTravelError(TypeError):
    """Of a value that can neither be copied nor kept; its argument names the class."""


class Remote:
    """An object of the other process.

    Operators ask the other side only between two of its own objects: where the other operand is a
    value of this side, the object can say neither that it equals it nor that it is close to it.
    """

    __slots__ = ("_link", "_number")

    def __init__(self, link, number):
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments, **keywords):
        return self._link.call(self, arguments, keywords)

    def __getattr__(self, name):
        if name.startswith("__"):  # protocols, such as numpy's that reads memory
            raise AttributeError(name)
        return self._link.call("getattr", (self, name))

    def __setattr__(self, name, value):
        self._link.call("setattr", (self, name, value))

    def __getitem__(self, key):
        return self._link.call("getitem", (self, key))

    def __setitem__(self, key, value):
        self._link.call("setitem", (self, key, value))

    def __hash__(self):
        return hash(self._number)


def _alone(name):
    return lambda self: self._link.call(name, (self,))


def _between(name):
    def ask(self, other):
        both = isinstance(other, Remote)
        return self._link.call(name, (self, other)) if both else NotImplemented

    return ask


for _name in ("len", "iter", "next", "str", "repr", "bool"):
    setattr(Remote, f"__{_name}__", _alone(_name))
for _name in ("eq", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"):
    setattr(Remote, f"__{_name}__", _between(_name))


class Link:
    """One end. `offered` are the functions that the other side may call by name, and `keep` says
    whether it may have a number for a value that cannot be copied."""

    def __init__(self, source, sink, offered, keep):
        self._lines, self._sink = os.fdopen(source, "rb"), sink
        self._offered, self._keep = offered, keep
        self._kept = []
        # Kept here before an answer can replace them.
        self._write, self._dumps, self._loads = os.write, json.dumps, json.loads

    def receive(self):
        """One line. Raises EOFError."""
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return self._loads(line)

    def call(self, function, arguments, keywords=()) -> Any:
        """Raises CannotTravelError, and what the function raises."""
        if not isinstance(function, str):
            function = self._encode(function)
        given = [self._encode(argument) for argument in arguments]
        named = {name: self._encode(value) for name, value in dict(keywords).items()}
        self.send("call", function, given, named)
        while True:
            kind, *rest = self.receive()
            if kind == "call":
                self._answer(*rest)
            elif kind == "value":
                result, changed = rest
                self._change(arguments, changed)
                return self._decode(result)
            else:
                raise _exception(*rest)

    def serve(self):
        """Until the other side ends."""
        while True:
            try:
                _call, *request = self.receive()
            except EOFError:
                return
            self._answer(*request)

    def _answer(self, function, given, named):
        try:
            if isinstance(function, str):
                function = self._offered[function]
            else:
                function = self._decode(function)
            arguments = [self._decode(argument) for argument in given]
            keywords = {name: self._decode(value) for name, value in named.items()}
            result = self._encode(function(*arguments, **keywords))
            changed = [
                self._encode(argument) if type(argument) in (list, dict, set) else None
                for argument in arguments
            ]
            same = all(
                new is None or new == old
                for new, old in zip(changed, given)  # noqa: B905
            )
            self.send("value", result, [] if same else changed)
        except BaseException as error:
            known = (kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
            self.send("error", next(known).__name__, str(error))

    def send(self, *words):
        """One line. Raises OSError where the other side has ended."""
        rest = (self._dumps(words) + "\n").encode()
        while rest:
            rest = rest[self._write(self._sink, rest) :]

    def _change(self, arguments, changed):
        """What the function did to lists, dicts and sets that were handed to it."""
        for argument, new in zip(arguments, changed):  # noqa: B905
            if new is None:
                continue
            new = self._decode(new)
            if type(argument) is list:
                argument[:] = new
            elif type(argument) in (dict, set):
                argument.clear()
                argument.update(new)

    def _encode(self, value):
        return encode(value, self._encode_other)

    def _encode_other(self, value):
        if isinstance(value, Remote):
            return ["yours", value._number]
        if self._keep(value):
            self._kept.append(value)
            return ["mine", len(self._kept) - 1]
        if hasattr(type(value), "__next__"):
            members = list(islice(value, MAX_ITEMS + 1))
            if len(members) <= MAX_ITEMS:
                return ["iterator", [self._encode(member) for member in members]]
        raise CannotTravelError(type(value).__name__)

    def _decode(self, value) -> Any:
        return decode(value, COPIED_BETWEEN, self._decode_other)

    def _decode_other(self, value):
        name, content = value[0], value[1]
        if name == "mine":
            return Remote(self, int(content))
        if name == "yours":
            return self._kept[content]
        if name == "type":
            return TYPES[content]
        members = [self._decode(member) for member in content]
        if name == "iterator":
            return iter(members)
        if name == "deque":
            return _imported("collections", "deque")(members, value[2])
        raise ValueError("no value: " + str(name))


def _exception(name, text):
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and the like want more
            pass
    return AnswerError(text)
