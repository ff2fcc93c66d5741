"""What a policy is shown of a Python function: a JSON schema from its type hints and its docstring.

It is the one that transformers' `get_json_schema` makes, key for key, for the types that this knows; pydantic
makes it for the others, such as dataclasses.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from trimaran.errors import InputError
from trimaran.types import Tool

SCALARS: Mapping[Any, str] = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    type(None): "null",
    list: "array",
    tuple: "array",
    dict: "object",
}
SECTION = re.compile(r"(Args|Returns|Raises|Yields|Examples?):\s*")
ARGUMENT = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


def describe(function: Callable[..., Any], name: str) -> Tool:
    """Raises InputError that names the function and what it lacks.

    Example:
        def add(a: int, b: int) -> int:
            '''Add two numbers.

            Args:
                a: The first.
                b: The second.
            '''

        describe(add, "add").description        # "Add two numbers."
    """
    about, reported = read_docstring(inspect.getdoc(function) or "")
    if not about:
        raise InputError(f"{name}: it has no docstring, which the policy is shown; write one")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for key, (hint, default) in parameters_of(function, name).items():
        properties[key] = _with_text(schema_of(hint), reported.get(key, ""))
        if default is inspect.Parameter.empty:
            required.append(key)
    parameters = {"type": "object", "properties": properties}
    parameters |= {"required": required} if required else {}
    return Tool(name, about, json.dumps(parameters, ensure_ascii=False))


def parameters_of(function: Callable[..., Any], name: str) -> dict[str, tuple[Any, Any]]:
    """Hint and default of each. Raises InputError."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError) as error:
        raise InputError(f"{name}: its type hints cannot be read: {error}") from None
    found: dict[str, tuple[Any, Any]] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise InputError(f"{name}: {parameter} says not what it takes; name each argument")
        if key not in hints:
            raise InputError(f"{name}: the argument {key} has no type hint; write one")
        found[key] = hints[key], parameter.default
    return found


def schema_of(hint: Any) -> dict[str, Any]:
    """Example: schema_of(list[int]) == {"type": "array", "items": {"type": "integer"}}"""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in SCALARS:
        return {"type": SCALARS[hint]}
    if origin in (Union, types.UnionType):
        return _union([one for one in arguments if one is not type(None)], type(None) in arguments)
    if origin is Literal:
        return _enum(arguments)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _enum([member.value for member in hint])
    if origin is list:
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is tuple and ... not in arguments:
        return {"type": "array", "prefixItems": [schema_of(one) for one in arguments]}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return TypeAdapter(hint).json_schema()


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Google's style: what stands before the sections, and of each argument what is said of it."""
    about: list[str] = []
    reported: dict[str, list[str]] = {}
    section, indent, lines = "", 0, [line.rstrip() for line in text.splitlines() if line.strip()]
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if depth == 0 and (header := SECTION.fullmatch(line)):
            section, indent = header[1], 0
        elif not section:
            about.append(line)
        elif section == "Args":
            indent = indent or depth
            if depth <= indent and (found := ARGUMENT.fullmatch(line.strip())):
                reported[found[1]] = [found[2]]
            elif reported:
                next(reversed(reported.values())).append(line.strip())
    return _prose(text, about), {name: " ".join(words).strip() for name, words in reported.items()}


def _prose(text: str, about: Sequence[str]) -> str:
    """As it was written, blank lines too."""
    if not about:
        return ""
    end = text.index(about[-1]) + len(about[-1])
    return text[:end].strip()


def _union(kinds: Sequence[Any], nullable: bool) -> dict[str, Any]:
    found = [schema_of(kind) for kind in kinds]
    if len(found) == 1:
        schema = found[0]
    elif all(one.keys() == {"type"} for one in found):
        names = sorted({one["type"] for one in found})
        schema = {"type": names if len(names) > 1 else names[0]}
    else:
        schema = {"anyOf": found}
    return {**schema, "nullable": True} if nullable else schema


def _enum(values: Sequence[Any]) -> dict[str, Any]:
    names = list(dict.fromkeys(SCALARS[type(value)] for value in values))
    return {"type": names[0] if len(names) == 1 else names, "enum": list(values)}


def _with_text(schema: dict[str, Any], text: str) -> dict[str, Any]:
    if choices := CHOICES.search(text):
        schema = {**schema, "enum": json.loads(choices[1])}
        text = text[: choices.start()].strip()
    return {**schema, "description": text} if text else schema
