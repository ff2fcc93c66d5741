"""Named rules: plain functions that compare a completion with the reference answer.

    rule(text, answer, extras) -> value between the rule's minimum and maximum

A rule raises ValueError when the *reference* is not one that it can work with; whatever the
completion holds is judged, never refused. Nothing heavy is imported: worker processes start fast.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal

from trimaran.errors import InputError

RuleFunction = Callable[[str, str, Mapping[str, str]], float]

# A sign counts only where no digit, letter or bracket stands before it: in "9-4" it subtracts.
NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
BOX = "\\boxed{"
FINAL_MARK = "####"


@dataclass(frozen=True, slots=True)
class Rule:
    function: RuleFunction
    minimum: float = 0.0
    maximum: float = 1.0


def last_integer(text: str, answer: str, extras: Mapping[str, str]) -> float:
    """1 when the last number in the text is the last integer of the reference.

    Thousands commas are allowed; 7.0 is 7, and 1.7 is neither 1 nor 7.
    """
    expected = _last_number(answer)
    if expected is None or expected != int(expected):
        raise ValueError(f"the answer {answer!r} does not end in an integer")
    return float(_last_number(text) == expected)


def final_answer(text: str, answer: str, extras: Mapping[str, str]) -> float:
    """1 when the text ends its solution as GSM8K does, with "#### <number>", and it is right.

    The reference may be the number alone or a whole GSM8K solution.
    """
    expected = _last_number(answer)
    if expected is None:
        raise ValueError(f"the answer {answer!r} holds no number")
    _before, mark, behind = text.rpartition(FINAL_MARK)
    given = NUMBER.search(behind) if mark else None
    return float(given is not None and _value(given.group()) == expected)


def boxed_match(text: str, answer: str, extras: Mapping[str, str]) -> float:
    r"""1 when the last \boxed{…} holds the reference: the same number, or the same characters
    when spaces are left out. The reference may stand in a box of its own."""
    boxed = _last_box(answer)
    expected = _plain(answer if boxed is None else boxed)
    if not expected:
        raise ValueError("the answer is empty")
    given = _last_box(text)
    return float(given is not None and _same(_plain(given), expected))


def exact_match(text: str, answer: str, extras: Mapping[str, str]) -> float:
    """1 when the text is the reference, white space at the ends aside."""
    return float(text.strip() == answer.strip())


RULES: Mapping[str, Rule] = {
    "last_integer": Rule(last_integer),
    "final_answer": Rule(final_answer),
    "boxed_match": Rule(boxed_match),
    "exact_match": Rule(exact_match),
}


def check_rules(names: Iterable[str]) -> None:
    """Raises InputError that names the first unknown rule and the nearest known one."""
    for name in names:
        if name not in RULES:
            near = difflib.get_close_matches(name, RULES, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"reward.rules.{name}: unknown rule{hint} (known: {', '.join(RULES)})")


def weighted_sum(terms: Mapping[str, float], weights: Mapping[str, float]) -> float:
    return sum(weights[name] * value for name, value in terms.items())


def worst_terms(weights: Mapping[str, float]) -> dict[str, float]:
    """The terms of the lowest reward that these rules can give."""
    return {
        name: RULES[name].minimum if weight >= 0 else RULES[name].maximum
        for name, weight in weights.items()
    }


def _last_number(text: str) -> Decimal | None:
    numbers = NUMBER.findall(text)
    return _value(numbers[-1]) if numbers else None


def _value(number: str) -> Decimal:
    return Decimal(number.replace(",", ""))


def _last_box(text: str) -> str | None:
    start = text.rfind(BOX)
    if start < 0:
        return None
    depth, content = 1, text[start + len(BOX) :]
    for end, character in enumerate(content):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return content[:end]
    return None


def _plain(text: str) -> str:
    return "".join(text.replace("$", "").replace("\\!", "").split())


def _same(given: str, expected: str) -> bool:
    if NUMBER.fullmatch(given) and NUMBER.fullmatch(expected):
        return _value(given) == _value(expected)
    return given == expected
