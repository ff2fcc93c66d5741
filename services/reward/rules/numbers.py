"""Rules that compare numbers and texts. Nothing heavy is imported."""

from __future__ import annotations

import re
from decimal import Decimal

from services.reward.rules.registry import Options
from trimaran.rewards import ReferenceUnusableError, Sample

# A sign counts only where no digit, letter or bracket stands before it: in "9-4" it subtracts.
NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")
BOX = "\\boxed{"
FINAL_MARK = "####"


def last_integer(sample: Sample) -> float:
    """1 when the last number in the text is the last integer of the reference.

    Thousands commas are allowed; 7.0 is 7, and 1.7 is neither 1 nor 7.
    """
    expected = _integer(sample.answer)
    return float(_last_number(sample.text) == expected)


def final_answer(sample: Sample) -> float:
    """1 when the text ends its solution as GSM8K does, with "#### <number>", and it is right.

    The reference may be the number alone or a whole GSM8K solution.
    """
    expected = _number(sample.answer)
    _before, mark, behind = sample.text.rpartition(FINAL_MARK)
    given = NUMBER.search(behind) if mark else None
    return float(given is not None and _value(given.group()) == expected)


def boxed_match(sample: Sample) -> float:
    r"""1 when the last \boxed{…} holds the reference: the same number, or the same characters
    when spaces are left out. The reference may stand in a box of its own."""
    boxed = _last_box(sample.answer)
    expected = _plain(sample.answer if boxed is None else boxed)
    if not expected:
        raise ReferenceUnusableError("the answer is empty")
    given = _last_box(sample.text)
    return float(given is not None and _same(_plain(given), expected))


def exact_match(sample: Sample) -> float:
    """1 when the text is the reference, white space at the ends aside."""
    return float(sample.text.strip() == sample.answer.strip())


def check_integer(answer: str, options: Options) -> None:
    _integer(answer)


def check_number(answer: str, options: Options) -> None:
    _number(answer)


def _integer(answer: str) -> Decimal:
    expected = _last_number(answer)
    if expected is None or expected != int(expected):
        raise ReferenceUnusableError(f"the answer {answer!r} does not end in an integer")
    return expected


def _number(answer: str) -> Decimal:
    expected = _last_number(answer)
    if expected is None:
        raise ReferenceUnusableError(f"the answer {answer!r} holds no number")
    return expected


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
