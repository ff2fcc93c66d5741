"""Where the answer stands in a text. Every search here takes linear time, whatever the text holds."""

from __future__ import annotations

import re
import reprlib
from collections import deque

from services.reward.rules.registry import Options
from trimaran.rewards import ReferenceUnusableError

BOX = "\\boxed{"
FINAL_MARK = "####"
BRACE = re.compile(r"[{}]")
BRACKET = re.compile(r"[()\[\]{}]")

BOX_OR_BRACE = re.compile(r"\\boxed\{|[{}]")
SEPARATOR_OR_BRACKET = re.compile(
    r"[()\[\]{}]|,(?![0-9]{3}(?![0-9]))|;|\\text\{[ ,]*(?:and|or)[ ]*\}|\b(?:and|or)\b"
)
PHANTOM = re.compile(r"\\phantom\{[^{}]*\}")
MAX_BOXES = 20
"""Different ones in a reference."""

# Characters that show nothing, and those that are written like others.
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
ALIKE = {
    **{code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)},  # fullwidth
    **{0x1D7CE + i: ord("0") + i % 10 for i in range(50)},  # mathematical digits
    **dict.fromkeys((0x2010, 0x2011, 0x2212, 0xFE63), ord("-")),
    **dict.fromkeys((0xA0, 0x2007, 0x2009, 0x202F, 0x3000), ord(" ")),
}


def as_seen(text: str) -> str:
    """One character for each that looks like it, and none for what is not seen."""
    return UNSEEN.sub("", text.translate(ALIKE))


def as_boxed(text: str) -> str:
    r"""Each \fbox{ as \boxed{: MATH's own solutions have both."""
    return text.replace("\\fbox{", BOX)


def last_box(text: str) -> str | None:
    r"""What stands in the last \boxed{…} or \fbox{…}; None where there is none or it is not closed."""
    text = as_boxed(text)
    start = text.rfind(BOX)
    if start < 0:
        return None
    start += len(BOX)
    end = closing_brace(text, start)
    return None if end is None else text[start:end]


def closing_brace(text: str, start: int) -> int | None:
    """Where the brace closes that was opened before `start`."""
    depth = 1
    for brace in BRACE.finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            return brace.start()
    return None


def depth(text: str) -> int:
    """How deep brackets of any kind are nested, closed or not."""
    deepest = level = 0
    for bracket in BRACKET.finditer(text):
        level = level + 1 if bracket.group() in "([{" else max(level - 1, 0)
        deepest = max(deepest, level)
    return deepest


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Without a list of all of them."""
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


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


def boxes(text: str) -> list[str]:
    r"""What stands in each closed \boxed{…} or \fbox{…} that lies in no other."""
    text = as_boxed(text)
    open_braces: list[int | None] = []  # where the content of a box begins; None: no box
    found: list[tuple[int, int]] = []
    for brace in BOX_OR_BRACE.finditer(text):
        if brace.group() != "}":
            open_braces.append(brace.end() if brace.group() == BOX else None)
        elif open_braces and (start := open_braces.pop()) is not None:
            while found and found[-1][0] > start:
                found.pop()
            found.append((start, brace.start()))
    return [text[start:end] for start, end in found]


def references_of(answer: str) -> tuple[str, ...]:
    """The final answer: what follows the last "####", or stands in the boxes, or else the whole
    text. Boxes of the same characters count once, and empty ones not at all.

    Raises ReferenceUnusableError when that is nothing, or more than MAX_BOXES.
    """
    answer = as_boxed(answer)
    _before, mark, final = answer.rpartition(FINAL_MARK)
    finals = [final] if mark else boxes(answer) if BOX in answer else [answer]
    bare = {_compact(final): _bare(final) for final in finals}
    found = tuple(final for compact, final in bare.items() if compact and final)
    if not found:
        raise ReferenceUnusableError("the answer is empty")
    if len(found) > MAX_BOXES:
        raise ReferenceUnusableError(f"the answer has more than {MAX_BOXES} different boxes")
    return found


def elements_of(text: str) -> tuple[str, ...]:
    """The elements of a list that stands outside of all brackets: "1, 2 or 3". Equal ones count once."""
    found, depth, start = [], 0, 0
    for mark in SEPARATOR_OR_BRACKET.finditer(text):
        if mark.group() in "([{":
            depth += 1
        elif mark.group() in ")]}":
            depth -= 1
        elif depth == 0:
            found.append(text[start : mark.start()])
            start = mark.end()
    found.append(text[start:])
    return tuple({_compact(one): one.strip(" $") for one in found if _compact(one)}.values())


def reference_of(answer: str) -> str:
    """The one final answer. Raises ReferenceUnusableError also where there are several."""
    first, *others = references_of(answer)
    if others:
        raise ReferenceUnusableError(
            f"the answer has {1 + len(others)} different boxes; this rule compares one"
        )
    return first


def _compact(text: str) -> str:
    return "".join(PHANTOM.sub("", text).split())


def _bare(text: str) -> str:
    text = text.strip()
    if len(text) > 1 and text.startswith("$") and text.endswith("$"):
        text = text.strip("$").strip()
    return text


def shown(text: str) -> str:
    """In an error: quoted, escaped and short."""
    return reprlib.repr(text)


def check_final(answer: str, options: Options) -> None:
    reference_of(answer)


def check_finals(answer: str, options: Options) -> None:
    references_of(answer)
