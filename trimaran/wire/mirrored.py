"""A dataclass and the message that has its fields: each becomes the other, without a line for each field.

    encode_version, decode_version = mirrored(types.VersionId, types_pb2.VersionId)

A field is the message's of the same name, without the axes at its end (`tokens_E`). Its annotation says how it travels:
a tuple is `repeated`, a mapping is a map, what may be None is `optional`, and a dataclass that was mirrored before is a
message of its own. A field that travels otherwise is given as a pair of functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

Value = TypeVar("Value")
Message = TypeVar("Message")

AXES = re.compile("_[A-Z]$")


class Codec(NamedTuple):
    """How the values of one annotation travel as messages. Example: Codec(write_ranges, decode_ranges)"""

    write: Callable[[Any, Any], None]
    """Given the value and a message that is empty: to put one message into another would copy it."""
    decode: Callable[[Any], Any]


Pair = tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Of one field: what it is in the message, where it is not None, and what it was."""
KNOWN: dict[Any, Codec] = {}
"""By annotation. Others may add what is no mirrored dataclass."""


class _Field(NamedTuple):
    write: Callable[[Any, Any], None]
    """Of the dataclass, into the message."""
    read: Callable[[Any], Any]
    """From the message."""


def mirrored(
    value: type[Value],
    message: type[Message],
    check: Callable[[Message], None] | None = None,
    **given: Pair,
) -> tuple[Callable[[Value], Message], Callable[[Message], Value]]:
    """Functions that encode and decode. `check` raises InputError for a message that is no such value. `given`: fields
    that travel in a way of their own."""
    made = list(_fields(value, message, given))

    def write(one: Value, into: Message) -> None:
        for field in made:
            field.write(one, into)

    def encode(one: Value) -> Message:
        write(one, into := message())
        return into

    def decode(found: Message) -> Value:
        if check:
            check(found)
        return value(*[field.read(found) for field in made])

    KNOWN[value] = Codec(write, decode)
    return encode, decode


def _fields(value: Any, message: Any, given: Mapping[str, Pair]) -> Iterator[_Field]:
    hints = get_type_hints(value)
    keys = {field.name: AXES.sub("", field.name) for field in fields(value)}
    named = set(message.DESCRIPTOR.fields_by_name)
    assert set(keys.values()) == named, f"{value}: {named ^ set(keys.values())} on one side alone"
    for name, key in keys.items():
        kinds = [kind for kind in get_args(hints[name]) if kind is not type(None)]
        may_lack = type(None) in get_args(hints[name])
        hint = kinds[0] if may_lack else hints[name]
        match get_origin(hint):
            case _ if name in given:
                yield _own(name, key, given[name])
            case _ if hint in KNOWN:
                yield _part(name, key, KNOWN[hint], may_lack)
            case kind if kind in (tuple, frozenset):
                yield (
                    _parts(name, key, KNOWN[kinds[0]])
                    if kinds[0] in KNOWN
                    else _list(name, key, kind)
                )
            case kind if kind is Mapping:
                yield _map(name, key)
            case _:
                yield _plain(name, key, may_lack)


def _own(name: str, key: str, pair: Pair) -> _Field:
    get, found, (encode, decode) = attrgetter(name), attrgetter(key), pair

    def write(one: Any, message: Any) -> None:
        if (encoded := encode(get(one))) is not None:
            setattr(message, key, encoded)

    def read(message: Any) -> Any:
        return decode(found(message))

    return _Field(write, read)


def _plain(name: str, key: str, may_lack: bool) -> _Field:
    get, read = attrgetter(name), attrgetter(key)

    def write(one: Any, message: Any) -> None:
        if (value := get(one)) is not None:
            setattr(message, key, value)

    return _Field(write, _if_there(key, read) if may_lack else read)


def _part(name: str, key: str, codec: Codec, may_lack: bool) -> _Field:
    get, found = attrgetter(name), attrgetter(key)

    def write(one: Any, message: Any) -> None:
        if (value := get(one)) is not None:
            part = found(message)
            part.SetInParent()
            codec.write(value, part)

    def read(message: Any) -> Any:
        return codec.decode(found(message))

    return _Field(write, _if_there(key, read) if may_lack else read)


def _parts(name: str, key: str, codec: Codec) -> _Field:
    get, found = attrgetter(name), attrgetter(key)

    def write(one: Any, message: Any) -> None:
        parts = found(message)
        for value in get(one):
            codec.write(value, parts.add())

    def read(message: Any) -> Any:
        return tuple(map(codec.decode, found(message)))

    return _Field(write, read)


def _list(name: str, key: str, kind: Callable[[Any], Any]) -> _Field:
    get, found = attrgetter(name), attrgetter(key)
    in_order = sorted if kind is frozenset else tuple[Any, ...]

    def write(one: Any, message: Any) -> None:
        found(message).extend(in_order(get(one)))

    def read(message: Any) -> Any:
        return kind(found(message))

    return _Field(write, read)


def _map(name: str, key: str) -> _Field:
    get, found = attrgetter(name), attrgetter(key)

    def write(one: Any, message: Any) -> None:
        found(message).update(get(one))

    def read(message: Any) -> Any:
        return dict(found(message))

    return _Field(write, read)


def _if_there(key: str, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def read_or_none(message: Any) -> Any:
        return read(message) if message.HasField(key) else None

    return read_or_none
