r"""What an answer says in the end, as the rule that judges it finds it: by these texts answers vote
(majority@k). Two ways of writing one value, such as 1/2 and 0.5, are two texts; plain numbers are brought to one
form, in a box too. Each function takes its rule's options, and gives None where it finds nothing.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from services.reward.rules import choices, formats, mathematics, minerva, numbers
from services.reward.rules.number_reading import bare_number, last_number, only_number
from services.reward.rules.texts import FINAL_MARK, last_box, last_match
from trimaran.rewards import Sample

MOST_DIGITS = 40
"""The digits of a number that is written out, before its point or behind it; longer ones have an exponent."""


def whole_text(sample: Sample, **_: Any) -> str:
    return sample.text


def number(sample: Sample, **_: Any) -> str | None:
    """The last one of the text."""
    return _written(last_number(sample.text))


def marked_number(sample: Sample, **_: Any) -> str | None:
    """The only one on the line behind the last "####"."""
    _before, mark, behind = sample.text.rpartition(FINAL_MARK)
    return _written(only_number(numbers.first_line(behind))) if mark else None


def gsm8k(sample: Sample, method: str = "strict") -> str | None:
    if method == "flexible":
        return _written(last_number(sample.text, within=numbers.GSM8K_TAIL))
    return _written(numbers.strict_number(sample.text))


def box(sample: Sample, **_: Any) -> str | None:
    r"""What stands in the last \boxed{…}, without white space."""
    return _compact(last_box(sample.text))


def loose_box(sample: Sample, **_: Any) -> str | None:
    """As `acc` finds it in the assistant's first turn."""
    return _compact(mathematics.loose_box(mathematics.first_turn(sample.text)))


def short_box(sample: Sample, **_: Any) -> str | None:
    """As `retool_reward` finds it."""
    return last_box(sample.text[-minerva.BOX_TAIL :])


def tagged(sample: Sample, **_: Any) -> str | None:
    """As `r1v` finds it: in the first <answer>…</answer>, or else the whole text."""
    _before, start, behind = sample.text.partition(formats.ANSWER)
    answer, end, _behind = behind.partition(formats.ANSWER_END)
    return _compact(answer if start and end else sample.text)


def conclusion(sample: Sample, **_: Any) -> str | None:
    """Near to what math-verify finds: the last box, or what stands behind "####" on the last line, or the
    last number."""
    line = sample.text.rstrip().rpartition("\n")[2]
    if line.startswith(FINAL_MARK):
        return _compact(line.removeprefix(FINAL_MARK))
    boxed = box(sample)
    return number(sample) if boxed is None else boxed


def minervas(sample: Sample, **_: Any) -> str | None:
    """As `acc_for_dapo` finds and writes it."""
    match = last_match(minerva.ANSWER, sample.text[-minerva.TAIL :])
    return minerva.normalize(match.group(1)) if match else None


def letter(sample: Sample, **_: Any) -> str | None:
    return choices.chosen(sample.text)


def _compact(text: str | None) -> str | None:
    """Without white space; a plain number as `_written`, since it may stand in a box in one answer and in none
    in the next."""
    if text is None:
        return None
    compact = "".join(text.split())
    return _written(bare_number(compact)) or compact


def _written(value: Decimal | None) -> str | None:
    """7.0 as 7, and 1,000 as 1000; a number of a million digits stays short."""
    if value is None:
        return None
    short = numbers.WIDE.plus(value).normalize(numbers.WIDE)
    return f"{short:f}" if abs(short.adjusted()) < MOST_DIGITS else str(short)
