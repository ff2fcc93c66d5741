"""What a policy is shown of a function, against transformers' own `get_json_schema`."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from services.environment.loading.functions import CallableTool, UnfitArgumentsError
from services.environment.loading.schema import describe
from trimaran.errors import InputError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


def simple(a: int, b: float = 2.0) -> float:
    """Multiply two numbers.

    The second is 2 where it is not given.

    Args:
        a: The first,
            which is whole.
        b: The second: a number.

    Returns:
        The product.
    """
    return a * b


def many(
    texts: list[str],
    pair: tuple[int, str],
    maybe: int | None,
    which: Literal["x", "y"],
    whole: list[int] | str | None,
    drink: str,
) -> None:
    """Do much.

    Args:
        texts: t
        pair: p
        maybe: m
        which: w
        whole: l
        drink: What to drink (choices: ["tea", "coffee"])
    """


def nothing() -> str:
    """The time."""
    return ""


@pytest.mark.parametrize("function", [simple, many, nothing])
def test_the_schema_is_that_of_transformers(function: Callable[..., Any]) -> None:
    from transformers.utils.chat_template_utils import get_json_schema

    theirs = get_json_schema(function)["function"]
    ours = describe(function, function.__name__)
    assert (ours.name, ours.description) == (theirs["name"], theirs["description"])
    assert ours.parameters == json.dumps(theirs["parameters"], ensure_ascii=False)


def test_an_enumeration_is_its_values() -> None:
    """As in transformers 5.23; 5.19 says that it is an object."""

    def paint(colour: Colour) -> None:
        """Paint it.

        Args:
            colour: o
        """

    (found,) = json.loads(describe(paint, "paint").parameters)["properties"].values()
    assert found == {"type": "string", "enum": ["red", "blue"], "description": "o"}


@dataclass
class Point:
    x: int
    y: int


def distance(a: Point, copy: bool = False) -> int:
    """The distance from nothing."""
    return a.x + a.y + copy


def test_arguments_become_what_the_hints_say() -> None:
    assert CallableTool.of(simple).call({"a": "3"}) == 6.0
    assert CallableTool.of(distance).call({"a": {"x": 1, "y": 2}, "copy": True}) == 4
    assert '"x"' in CallableTool.of(distance).tool.parameters
    with pytest.raises(UnfitArgumentsError, match="a: Input should be a valid integer"):
        CallableTool.of(simple).call({"a": "three"})


def bare(a: int) -> int:
    return a


def unhinted(a) -> int:  # type: ignore[no-untyped-def]
    """Take something."""
    return a


def variadic(*a: int) -> int:
    """Take something."""
    return sum(a)


@pytest.mark.parametrize(
    ("function", "reported"),
    [(bare, "no docstring"), (unhinted, "no type hint"), (variadic, "name each argument")],
)
def test_what_no_policy_could_be_shown_is_refused(function: Any, reported: str) -> None:
    with pytest.raises(InputError, match=reported):
        CallableTool.of(function)
