"""Two processes that call each other's functions, by lines of JSON. Its text travels into the
sandbox in front of harness.py's and judge.py's; it needs Python 3.8.

A line is ["call", function, arguments, keywords], or what answers it: ["value", result, changed]
or ["error", class, text]. Values are copied. What cannot be copied goes as a number, and is a
Remote on the other side. Nothing that arrives can make this side run code which it did not offer.
"""

from __future__ import annotations

import builtins
import json
import os
import types
from itertools import islice

from services.reward.rules.code.values import COPIED_BETWEEN, TYPES, decode, encode, imported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_ITEMS = 10_000
"""Of an iterator that is copied."""
FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
)


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

    def __call__(self, /, *arguments, **keywords):
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
            if len(members) > MAX_ITEMS:  # perhaps the answer's doing: no fault of the tests
                raise ValueError(f"an iterator of more than {MAX_ITEMS} members")
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
            return imported("collections", "deque")(members, value[2])
        raise ValueError("no value: " + str(name))


def _exception(name, text):
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        try:
            return kind(text)
        except TypeError:  # UnicodeDecodeError and the like want more
            pass
    return AnswerError(text)
