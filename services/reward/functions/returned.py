"""What a reward function gave back, read into outcomes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from services.reward.outcome import NotApplicable, Value

PREDICTION = "pred"
"""Where a mapping holds what the function took for the final answer; verl's reward functions have it."""

MAX_CHARACTERS = 200
"""A longer text ends in a digest, so that two that differ only behind it are two answers."""
DIGEST_CHARACTERS = 16

LONGEST_BITS = 256
"""The size of an integer that an error shows; Python does not write one of thousands of digits."""


class FunctionFault(Exception):
    """The function is wrong, not the answer: it returned what is no score, or it needs something
    that there is not. Its completions are faulted."""


def read_batch(result: Any, count: int, keys: Sequence[str]) -> list[Value | NotApplicable]:
    """One outcome a completion. Raises FunctionFault."""
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise FunctionFault(
            f"the function gave {_show(result)}; a list of {count} scores was expected"
        )
    results = list(result)
    if len(results) != count:
        raise FunctionFault(f"the function gave {len(results)} scores for {count} completions")
    return [read_one(item, keys) for item in results]


def read_one(result: Any, keys: Sequence[str]) -> Value | NotApplicable:
    """`keys`: where a mapping holds the score; the first one that it has. Raises FunctionFault."""
    if result is None:
        return NotApplicable()
    if not isinstance(result, Mapping):
        return Value(_number(result))
    key = next((key for key in keys if key in result), None)
    if key is None:
        had = ", ".join(map(repr, result)) or "nothing"
        raise FunctionFault(f"the function gave a dict without {keys[0]!r} (it has {had})")
    if result[key] is None:
        return NotApplicable()
    others = {str(name): part for name, part in result.items() if name != key}
    prediction = as_vote(others[PREDICTION]) if PREDICTION in others else None
    return Value(_number(result[key]), numbers_of(others), prediction)


def as_vote(prediction: Any) -> str:
    """Without white space at its ends; "" for None. Foreign code may give anything: what has no text, such as an
    integer of more digits than Python writes, has no vote, and its score counts all the same.

    Example: as_vote(" 42 ") == "42"
    """
    try:
        text = "" if prediction is None else str(prediction).strip()
    except Exception:
        return ""
    data = text.encode("utf-8", "replace")
    if len(text) <= MAX_CHARACTERS:
        return data.decode()
    digest = hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]
    return f"{data.decode()[: MAX_CHARACTERS - DIGEST_CHARACTERS - 1]}…{digest}"


def numbers_of(items: Mapping[str, Any]) -> dict[str, float]:
    """Those that are numbers: texts and lists beside a score are no metrics."""
    parts: dict[str, float] = {}
    for name, item in items.items():
        try:
            parts[name] = _number(item)
        except FunctionFault:
            continue
    return parts


def _number(item: Any) -> float:
    """Also of a bool, and of numpy's and torch's scalars. Raises FunctionFault."""
    if isinstance(item, str | bytes | bytearray):
        raise FunctionFault(f"the function gave {_show(item)}; a score is a number")
    try:
        return float(item)
    except Exception as error:  # __float__ is the function's own code
        raise FunctionFault(
            f"the function gave {_show(item)}; a score is a number ({type(error).__name__})"
        ) from error


def _show(item: Any) -> str:
    if isinstance(item, int) and item.bit_length() > LONGEST_BITS:
        return f"an int of {item.bit_length()} bits"
    if isinstance(item, bool | int | float | str | bytes | None):
        return f"the {type(item).__name__} {repr(item)[:60]}"
    return f"a {type(item).__name__}"
