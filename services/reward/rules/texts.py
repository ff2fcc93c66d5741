"""Where the answer stands in a text. Every search here takes linear time, whatever the text holds."""

from __future__ import annotations

import re
import reprlib
from collections import deque
from decimal import Decimal

from services.reward.rules.registry import Options
from trimaran.rewards import ReferenceUnusableError

BOX = "\\boxed{"
FINAL_MARK = "####"
BRACE = re.compile(r"[{}]")

# A sign counts only where no digit, letter or bracket stands before it: in "9-4" it subtracts.
NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?")


def last_box(text: str) -> str | None:
    r"""What stands in the last \boxed{…}; None where there is none or it is not closed."""
    start = text.rfind(BOX)
    if start < 0:
        return None
    start += len(BOX)
    end = closing_brace(text, start)
    return None if end is None else text[start:end]


def closing_brace(text: str, start: int) -> int | None:
    """Of the brace that was opened before `start`."""
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    return None


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Without a list of all of them."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def last_number(text: str) -> Decimal | None:
    match = last_match(NUMBER, text)
    return to_decimal(match.group()) if match else None


def to_decimal(number: str) -> Decimal:
    """Of what NUMBER matches. Decimal, as int() refuses more than 4300 digits."""
    return Decimal(number.replace(",", ""))


def in_order(text: str, *marks: str) -> bool:
    """The text begins with the first mark, and the others follow, none overlapping."""
    if not text.startswith(marks[0]):
        return False
    position = len(marks[0])
    for mark in marks[1:]:
        found = text.find(mark, position)
        if found < 0:
            return False
        position = found + len(mark)
    return True


def reference_of(answer: str) -> str:
    """The final answer: what follows "####", or stands in the last box, or else the whole text.

    Raises ReferenceUnusableError when that is empty.
    """
    _before, mark, final = answer.rpartition(FINAL_MARK)
    if not mark:
        final = last_box(answer) if BOX in answer else answer
    final = (final or "").strip()
    if len(final) > 1 and final.startswith("$") and final.endswith("$"):
        final = final.strip("$").strip()
    if not final:
        raise ReferenceUnusableError("the answer is empty")
    return final


def shown(text: str) -> str:
    """In an error: quoted, escaped and short."""
    return reprlib.repr(text)


def check_final(answer: str, options: Options) -> None:
    reference_of(answer)
