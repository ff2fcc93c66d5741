"""multiple_choice: which letter a text chooses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from services.reward.rules.formats import ANSWER, ANSWER_END, THINK_END
from services.reward.rules.predictions import voting
from services.reward.rules.registry import Options
from services.reward.rules.texts import BOX, as_boxed, as_seen, closing_brace, reference_of, shown
from trimaran.rewards import ReferenceUnusableError, Sample

CHOICES = "ABCDE"
MAX_CHOICE = 300
"""Characters of a letter with the option's text behind it."""

# Every repetition is bounded, so that white space without end costs nothing.
FACE = r"\\(?:text|math)[a-z]{0,2}\s?\{"
OPEN = rf"(?:[\s*_\"'“‘`$(\[{{]|\\[(\[]|{FACE}|(?i:option|choice|letter)\s){{0,12}}"
# A and I are also words: "The answer is A dog", "B, I think".
LETTER = r"(?:[B-HJ-Z]|[AI](?!\s(?!(?:and|or|but|nor|as|is|because|since|for|which)\b)[a-z]))(?!\w|['’]\w)"
CHOICE = re.compile(rf"{OPEN}({LETTER})")
ANY_LETTER = re.compile(rf"(?<![\w'’\\]){LETTER}")

HEAD = r"(?i:\b(?:answer|(?:correct|right|best|final)\s(?:option|choice)))"
LINK = (
    r"(?:[\s*_:=–—-]|(?i:is|was|be|would|should|must|will|therefore|thus|then|hence|clearly|likely"
    r"|probably|option|choice|to|for|the|this|question|problem)\b){1,16}"
)
SAYS = re.compile(rf"{HEAD}({LINK}){OPEN}({LETTER})")
CONNECTED = re.compile(r"[:=–—-]|\n|\b(?:is|was|be)\b", re.IGNORECASE)

CLOSE = r"(?:[ \t*_\"'”’`$)\]}]|\\[)\]])"
RIVAL = re.compile(
    rf"(?:{CLOSE}|[(\[{{“‘,;:/|&+–-]|\\[(\[&]|{FACE}|\\boxed\s?\{{|(?i:and|or|nor|to|but|no|maybe"
    rf"|perhaps|either|option|choice|answer)\b){{0,20}}(?<!\w){LETTER}"
)
NEXT_LINE = re.compile(rf"{CLOSE}{{0,12}}[.,;]?\n{OPEN}{LETTER}{CLOSE}{{0,12}}[.,;]?(?:\n|$)")
DENIED = re.compile(
    rf"{CLOSE}{{0,12}}\?|{CLOSE}{{0,12}},?\s?(?:which\s)?(?:is|was)(?:n['’]t|\s(?:not|wrong|incorrect|false))\b"
)
# What may stand behind a letter that is alone, or has the option's text behind it.
TAIL = re.compile(rf"{CLOSE}{{0,12}}(?:[.:,]?{CLOSE}{{0,12}}$|(?<=[)}}])|[.:])(.*)", re.DOTALL)
NEGATED = re.compile(r"(?:\b(?:not|never|nor|neither)|n['’]t)[\s$*(\\]{0,6}$")
# Between two choices that are stated side by side: the second does not take back the first.
BESIDE = re.compile(
    r"(?:[\W_]|(?i:and|or|so|the|an?|answer|final|correct|option|choice|is|boxed|text)\b){0,40}"
)


@dataclass(frozen=True, slots=True)
class Choice:
    start: int
    end: int
    letter: str | None
    """None: several at once."""


def multiple_choice(sample: Sample, choices: str = CHOICES) -> Mapping[str, Any]:
    r"""1 when the last choice that the text states is the reference's letter.

    A choice reads "answer is (B)", "Answer: B" or \boxed{B}; or the letter is all that is answered,
    alone or with the option's text ("B: 42"). Only what stands behind </think> and in
    <answer>…</answer> is read, where there are such. Several letters in one choice are none.
    """
    expected = chosen(reference_of(sample.answer))
    if expected is None or expected not in choices:
        raise ReferenceUnusableError(f"the answer {shown(sample.answer)} is none of {choices}")
    given = chosen(sample.text)
    return voting(given == expected, given)


def check_letter(answer: str, options: Options) -> None:
    multiple_choice(Sample(text="", answer=answer), options.get("choices", CHOICES))


def is_choices(choices: object) -> bool:
    return isinstance(choices, str) and bool(re.fullmatch(r"[A-Z]{2,26}", choices))


def chosen(text: str) -> str | None:
    text = _answered(as_boxed(as_seen(text))).strip()
    if (alone := _alone(text)) and "\n" not in text:
        return alone
    choices = sorted([*_stated(text), *_boxed(text)], key=lambda choice: choice.end)
    if not choices:
        return None
    before, last = choices[-2:] if len(choices) > 1 else choices * 2
    if before.letter != last.letter and BESIDE.fullmatch(text, before.end, last.start):
        return None
    return last.letter


def _answered(text: str) -> str:
    text = text.rpartition(THINK_END)[2]
    _before, mark, behind = text.partition(ANSWER)
    if not mark:
        return text
    return "" if ANSWER in behind else behind.partition(ANSWER_END)[0]


def _alone(text: str) -> str | None:
    """The letter of "B", "(B)", "B: 42", but none of "A or B", "B: or A"."""
    letter = CHOICE.match(text) if len(text) <= MAX_CHOICE else None
    tail = letter and TAIL.match(text, letter.end())
    if letter is None or not tail or ANY_LETTER.search(tail[1]):
        return None
    return letter[1]


def _stated(text: str) -> Iterator[Choice]:
    for says in SAYS.finditer(text):
        if CONNECTED.search(says[1]):
            several = any(after.match(text, says.end()) for after in (RIVAL, NEXT_LINE, DENIED))
            yield Choice(says.start(), says.end(), None if several else says[2])


def _boxed(text: str) -> Iterator[Choice]:
    for box in re.finditer(re.escape(BOX), text):
        content = text[box.end() : box.end() + MAX_CHOICE]
        letter = CHOICE.match(content)
        if NEGATED.search(text, max(0, box.start() - 16), box.start()):
            continue
        end = closing_brace(content, 0) if letter else None
        if letter and end is not None and letter.end() <= end:
            yield Choice(box.start(), box.end() + letter.end(), _alone(content[:end]))
