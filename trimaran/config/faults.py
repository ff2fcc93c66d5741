"""What is wrong with a configuration, one line a fault: it names the key and, where one is near, another."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError


def describe_faults(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Describes the faults of a tree that is no `model`.

    Example: describe_faults(RunConfig, error) == ["run.stepss: unknown key; did you mean run.steps? …"]
    """
    faults, described = error.errors(), list[str]()
    for number, fault in enumerate(faults):
        # A list whose only element is wrong is too short for pydantic, too, which reports both.
        place = fault["loc"]
        inside = any(one["loc"][: len(place)] == place for one in faults[:number])
        if not (inside and fault["type"] == "too_short"):
            described.append(_describe(model, fault))
    return described


def _describe(model: type[BaseModel], fault: Any) -> str:
    location = [str(part) for part in fault["loc"]]
    key = ".".join(location) or "configuration"
    if fault["type"] == "extra_forbidden":
        known = _known_keys(model, location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        hint = f"; did you mean {'.'.join([*location[:-1], near[0]])}?" if near else ""
        return f"{key}: unknown key{hint} (known here: {', '.join(known)})"
    if fault["type"] == "missing":
        return f"{key}: missing; it must be given"
    if fault["type"] == "value_error":
        text = str(fault["ctx"]["error"])
        return f"{key}: {text}" if location else text
    if fault["type"] == "dict_type":
        return f"{key}: must be a mapping, name: value (given: {fault['input']!r})"
    if fault["type"] == "tuple_type":
        return f"{key}: must be a list, such as [{fault['input']}] (given: {fault['input']!r})"
    if fault["type"] == "model_type":
        known = ", ".join(_known_keys(model, location))
        return f"{key}: must be a section of {known} (given: {fault['input']!r})"
    return f"{key}: {fault['msg']} (given: {fault['input']!r})"


def _known_keys(model: type[BaseModel], location: Sequence[str]) -> list[str]:
    parts = iter(location)
    for part in parts:
        annotation = model.model_fields[part].annotation
        model = _section(annotation) or model
        if get_origin(annotation) in (Mapping, tuple):
            next(parts, None)  # the name or the number of one of its sections
    return list(model.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds: itself, or none, or one for each name of a mapping."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    arguments = get_args(annotation)
    if get_origin(annotation) is Mapping:
        arguments = arguments[1:]
    return next(filter(None, map(_section, arguments)), None)
