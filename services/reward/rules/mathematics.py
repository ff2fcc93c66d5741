"""Rules on mathematical answers. What is equal is said by math-verify or mathruler, never here.

Option `library` chooses; the default is the one of the project that the rule comes from.
The libraries are imported by the worker that needs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from services.reward.rules import formats
from services.reward.rules.number_reading import last_number
from services.reward.rules.predictions import compact, voting
from services.reward.rules.texts import (
    BOX,
    FINAL_MARK,
    as_boxed,
    boxes,
    closing_brace,
    depth,
    elements_of,
    last_box,
    references_of,
)
from trimaran.rewards import Sample

MATH_VERIFY, MATHRULER = "math-verify", "mathruler"
LIBRARIES = (MATH_VERIFY, MATHRULER)

MAX_ANSWER = 1000
"""Characters that a library is given. A longer answer is wrong, unseen: the libraries take far more
than linear time, and the longest answer of MATH-500 has 159."""

MAX_DEPTH = 16
"""How deep brackets may nest. math-verify's time grows with it: 20 take a second, 100 over ten."""

TURN = "<|im_start|>assistant"
STOP = re.compile(r"</s>|<\|im_end\|>|<\|endoftext\|>")
DELIMITER = re.compile(r"([<>/])")


def math_verify(sample: Sample) -> Mapping[str, Any]:
    """1 when math-verify finds the reference at the end of the text: a final answer, a box, or the
    last expression.

    A last line "#### <answer>", which it does not know, is read alone.
    """
    references = _references(sample.answer, MATH_VERIFY)
    line = sample.text.rstrip().rpartition("\n")[2]
    if line.startswith(FINAL_MARK):
        text = line.removeprefix(FINAL_MARK)
        return voting(_concludes(text, references), compact(text))
    box = last_box(sample.text)  # near to what math-verify finds
    given = last_number(sample.text) if box is None else compact(box)
    return voting(_concludes(sample.text, references), given)


def boxed_equal(sample: Sample, library: str = MATHRULER) -> Mapping[str, Any]:
    r"""1 when the last \boxed{…} is right."""
    right = _boxed(sample.text, _references(sample.answer, library), library)
    return voting(right, compact(last_box(sample.text)))


def math(sample: Sample, format_weight: float = 0.1, library: str = MATHRULER) -> Mapping[str, Any]:
    r"""EasyR1's: 0.9 for a right box and 0.1 for the format <think>…</think>…\boxed{…}….

    White space around < > and / is left out first, as Qwen2.5-VL likes to write it.
    """
    text = _tighten(sample.text)
    right = _boxed(text, _references(sample.answer, library), library)
    read = compact(last_box(sample.text))
    return _weighted(right, formats.is_boxed_thought(text), format_weight, read)


def geo3k(
    sample: Sample, format_weight: float = 0.1, library: str = MATHRULER
) -> Mapping[str, Any]:
    """verl's: as math, but the text is taken as it is."""
    right = _boxed(sample.text, _references(sample.answer, library), library)
    read = compact(last_box(sample.text))
    return _weighted(right, formats.is_boxed_thought(sample.text), format_weight, read)


def r1v(sample: Sample, format_weight: float = 0.5, library: str = MATHRULER) -> Mapping[str, Any]:
    """EasyR1's: half for what stands in the first <answer>…</answer> (or the whole text, where
    there is none), half for the format <think>…</think><answer>…</answer>.

    The answer may span lines, which EasyR1's pattern overlooks.
    """
    references = _references(sample.answer, library)
    _before, start, behind = sample.text.partition(formats.ANSWER)
    answer, end, _behind = behind.partition(formats.ANSWER_END)
    given = answer if start and end else sample.text
    right = _equal(given.strip(), references, library)
    return _weighted(right, formats.is_think_answer(sample.text), format_weight, compact(given))


def base_acc(sample: Sample, library: str = MATHRULER) -> Mapping[str, Any]:
    r"""1 when <think>…</think>…<answer>…\boxed{…}…</answer> is the form and the last box right."""
    references = _references(sample.answer, library)
    gate = formats.is_boxed_answer(sample.text)
    right = gate and _boxed(sample.text, references, library)
    return voting(right, compact(last_box(sample.text)))


def math_verify_reward(sample: Sample) -> Mapping[str, Any]:
    """As base_acc, but math-verify finds the answer in the last <answer>…</answer>."""
    references = _references(sample.answer, MATH_VERIFY)
    gate = formats.is_boxed_answer(sample.text)
    answer = sample.text.removesuffix(formats.ANSWER_END).rpartition(formats.ANSWER)[2]
    right = gate and _concludes(answer, references)
    return voting(right, compact(last_box(sample.text)))


def acc(sample: Sample, library: str = MATH_VERIFY) -> Mapping[str, Any]:
    """1 for a right box, -0.5 for a wrong one, -1 for none, in the assistant's first turn.

    MindSpeed-RL compares with a checker of its own; here a library does.
    """
    references = _references(sample.answer, library)
    turn = _first_turn(sample.text)
    box = _loose_box(turn)
    given = _all_boxes(turn) if len(references) > 1 else box
    wrong = -0.5 if given else -1.0
    return voting(1.0 if given and _equal(given, references, library) else wrong, compact(box))


def _weighted(
    right: bool, formatted: bool, format_weight: float, read: str | None
) -> Mapping[str, Any]:
    score = (1 - format_weight) * right + format_weight * formatted
    return voting(score, read, {"accuracy": float(right), "format": float(formatted)})


@lru_cache(maxsize=64)
def _references(answer: str, library: str) -> tuple[str, ...]:
    """The final answers, each value once; what a box lists is one answer only where it is the only
    box. All completions of a group share them."""
    references = references_of(answer)
    if len(references) == 1:
        return references
    equal = _checker(library).equal
    distinct = [
        one
        for place, one in enumerate(references, 1)
        if not any(equal(later, one) for later in references[place:])
    ]
    if len(distinct) == 1:
        return (distinct[0],)
    return tuple(element for one in distinct for element in elements_of(one))


def _checker(library: str) -> ModuleType:
    if library == MATHRULER:
        from services.reward.rules import by_mathruler as checker
    else:
        from services.reward.rules import by_math_verify as checker
    return checker


def _boxed(text: str, references: tuple[str, ...], library: str) -> bool:
    given = _all_boxes(text) if len(references) > 1 else last_box(text)
    return given is not None and _equal(given.strip(), references, library)


def _all_boxes(text: str) -> str:
    """As one list: where the reference has several values, they are the answer."""
    return ", ".join(boxes(text.rpartition(formats.THINK_END)[2]))


def _equal(given: str, references: tuple[str, ...], library: str) -> bool:
    if len(given) > MAX_ANSWER or depth(given) > MAX_DEPTH:
        return False
    equal = _checker(library).equal
    if len(references) == 1:
        return equal(given, references[0])
    # As sets: each element of one side is equal to one of the other.
    elements = elements_of(given)
    return (
        len(elements) <= 2 * len(references)
        and all(any(equal(one, other) for one in elements) for other in references)
        and all(any(equal(one, other) for other in references) for one in elements)
    )


def _concludes(text: str, references: tuple[str, ...]) -> bool:
    from services.reward.rules import by_math_verify

    if len(references) > 1 and (given := _all_boxes(text)):
        return _equal(given, references, MATH_VERIFY)
    end = _end(as_boxed(text))
    return depth(end) <= MAX_DEPTH and by_math_verify.concludes(end, ", ".join(references))


def _end(text: str) -> str:
    """At most MAX_ANSWER characters: the last ones, from the beginning of a line, or those that
    begin with the last box where it stands before them."""
    start, box = len(text) - MAX_ANSWER, text.rfind(BOX)
    if start <= 0:
        return text
    if 0 <= box < start:
        return text[box : box + MAX_ANSWER]
    line = text.find("\n", start, len(text) if box < 0 else box) + 1
    return text[line or start :]


def _tighten(text: str) -> str:
    first, *rest = DELIMITER.split(text)
    if not rest:
        return text
    return "".join([first.rstrip(), *(part.strip() for part in rest[:-1]), rest[-1].lstrip()])


def _first_turn(text: str) -> str:
    text = text[max(text.find(TURN), 0) :]
    stop = STOP.search(text)
    return text[: stop.start()].strip() if stop else text


def _loose_box(text: str) -> str:
    r"""After the last "boxed": up to the closing brace, or the end of the text where there is
    none; of "\boxed 5$", up to the dollar sign."""
    _before, mark, behind = as_boxed(text).rpartition("boxed")
    if not mark:
        return ""
    if not behind.startswith("{"):
        return behind.partition("$")[0].strip()
    return behind[1 : closing_brace(behind, 1)].strip()
