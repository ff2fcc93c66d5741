"""A Python function as a tool: its description, and calls whose arguments fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from services.environment.loading.schema import describe, parameters_of
from trimaran.errors import InputError
from trimaran.types import Tool

ARGUMENTS = ConfigDict(
    extra="forbid",
    coerce_numbers_to_str=True,
    arbitrary_types_allowed=False,
    protected_namespaces=(),
)


class FailedCallError(Exception):
    """A call that failed; the policy reads the text as it stands."""


class UnfitArgumentsError(FailedCallError):
    """The policy's arguments are none that the tool takes; the text says which and why."""


@dataclass(frozen=True, slots=True)
class CallableTool:
    """What a worker calls. Example: CallableTool.of(add).call({"a": 1, "b": "2"}) == 3"""

    tool: Tool
    call: Callable[[Mapping[str, Any]], Any]
    """With a JSON object; what it gives may have to be awaited. Raises what the tool raises, and
    UnfitArgumentsError."""

    @classmethod
    def of(cls, function: Callable[..., Any], name: str = "") -> CallableTool:
        """Raises InputError for a function that no policy could be shown."""
        if not callable(function) or isinstance(function, type):
            raise InputError(f"{name}: it is no function but a {type(function).__name__}")
        name = name or function.__name__
        tool, fit = describe(function, name), _fitting(function, name)
        return cls(tool, lambda arguments: function(**fit(arguments)))


def _fitting(
    function: Callable[..., Any], name: str
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """From a JSON object to keyword arguments of the types that the hints say."""
    parameters = parameters_of(function, name)
    # Under names of our own: a model's fields may not be called as its methods are, such as `copy`.
    numbered = {f"a{place}": key for place, key in enumerate(parameters)}
    keys = {key: field for field, key in numbered.items()}
    fields: dict[str, Any] = {
        field: (parameters[key][0], ... if parameters[key][1] is inspect.Parameter.empty else None)
        for field, key in numbered.items()
    }
    try:
        reader = TypeAdapter(create_model(name, __config__=ARGUMENTS, **fields))
    except PydanticSchemaGenerationError as error:
        raise InputError(f"{name}: {str(error).splitlines()[0]}") from None

    def fit(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            read = reader.validate_python({keys.get(key, key): arguments[key] for key in arguments})
        except ValidationError as error:
            raise UnfitArgumentsError(f"error: {_words(error, numbered)}") from None
        return {numbered[field]: getattr(read, field) for field in read.model_fields_set}

    return fit


def _words(error: ValidationError, numbered: Mapping[str, str]) -> str:
    """Example: "b: Input should be a valid integer; c: it is no argument"."""
    found: list[str] = []
    for one in error.errors(include_url=False):
        first, *rest = one["loc"]
        place = ".".join(map(str, (numbered.get(str(first), first), *rest)))
        text = {"extra_forbidden": "there is no such argument", "missing": "it is missing"}
        found.append(f"{place}: {text.get(one['type'], one['msg'])}")
    return "; ".join(found)
