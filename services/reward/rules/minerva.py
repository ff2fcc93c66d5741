"""Answers that are equal in characters once they are brought to one form, and the rules of DAPO
and ReTool that compare so: right 1, wrong -1.

The form is Minerva's (Lewkowycz et al. 2022, arXiv:2206.14858, appendix D.1), as MindSpeed-RL,
verl (verl/utils/reward_score/math_dapo.py) and EasyR1 have it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.reward.rules.length import overlong
from services.reward.rules.predictions import voting
from services.reward.rules.registry import Options
from services.reward.rules.texts import as_seen, last_box, last_match, reference_of
from trimaran.rewards import ReferenceUnusableError, Sample

TAIL = 300
"""Characters that are read."""
BOX_TAIL = 100
CALL_REWARD = 0.1
ANSWER = re.compile(r"(?i:Answer)\s*:\s*([^\n]+)")

REPLACED = (
    *(("an ", ""), ("a ", ""), (".$", "$"), (r"\$", ""), ("\\ ", ""), (" ", "")),
    *(("mbox", "text"), (r",\text{and}", ","), (r"\text{and}", ","), (r"\text{m}", r"\text{}")),
)
# In this order: some are parts of others.
REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", r"\ldots"),
    *("sue", "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds"),
    *("meters", "meals", "edges", "students", "childrentickets", "multiples", r"\text{s}"),
    *(r"\text{.}", "\\text{\ns}", r"\text{}^2", r"\text{}^3", "\\text{\n}", r"\text{}"),
    *(r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', r"\dots"),
)
UNWRAPPED = tuple(
    re.compile(pattern)
    for pattern in (
        r"\\text\{(.*?)\}",
        r"\\textbf\{(.*?)\}",
        r"\\overline\{(.*?)\}",
        r"\\(?:boxed|fbox)\{(.*)\}",
    )
)
FORMULA = re.compile(r"([^$0-9]*)(\$[^$]*\$)([^$0-9]*)")
DOUBT = re.compile(r"\b(?:not|nor|or|never)\b|n['’]t\b|[<>≠]", re.IGNORECASE)
EQUALS = re.compile(r"(?<![!<>])(?<!\\not)=")
THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:,|\{,\}|,\\!)[0-9]{3})+(?![0-9,])")
DIGITS = re.compile(r"[0-9]+")
SHORT_FRACTION = re.compile(r"frac([^{])(.)")
SHORT_ROOT = re.compile(r"sqrt([^{])")


def acc_for_dapo(sample: Sample) -> Mapping[str, Any]:
    """The last "Answer: …" among the last 300 characters: 1 when right, else -1."""
    return voting(*_accuracy(sample))


def dapo(
    sample: Sample, max_tokens: int, buffer: int | None = None, factor: float = 1.0
) -> Mapping[str, Any]:
    """acc_for_dapo + factor x overlong, as verl's and EasyR1's dapo."""
    accuracy, given = _accuracy(sample)
    penalty = overlong(sample, max_tokens, buffer)
    parts = {"accuracy": accuracy, "overlong": penalty}
    return voting(accuracy + factor * penalty, given, parts)


def retool_reward(sample: Sample, call_mark: str = "<tool_call>") -> Mapping[str, Any]:
    r"""1 when the last \boxed{…} among the last 100 characters is the reference, to the character.
    Else -1, and 0.1 more for each tool call, up to 0; `call_mark` opens one."""
    expected = _short_reference(sample.answer)
    given = last_box(sample.text[-BOX_TAIL:])
    wrong = min(0.0, -1.0 + CALL_REWARD * sample.text.count(call_mark))
    return voting(1.0 if given == expected else wrong, given)


def check_short(answer: str, options: Options) -> None:
    _short_reference(answer)


def _accuracy(sample: Sample) -> tuple[float, str | None]:
    """1 or -1, and the answer in its normal form."""
    expected = normalize(_short_reference(sample.answer))
    match = last_match(ANSWER, sample.text[-TAIL:])
    given = normalize(match.group(1)) if match else None
    return (1.0 if given == expected else -1.0), given


def normalize(answer: str) -> str:
    """Quadratic in the length; both sides have at most TAIL characters."""
    answer = EQUALS.split(as_seen(answer))[-1].strip()
    answer = _formula(answer.replace(r"\$", ""))
    answer = THOUSANDS.sub(lambda number: "".join(DIGITS.findall(number.group())), answer)
    shortened = _shorten(answer)
    if not _is_subsequence(DIGITS.findall(shortened), DIGITS.findall(answer)):
        return answer  # "4 2" is not 42
    shortened = SHORT_FRACTION.sub(r"frac{\1}{\2}", shortened)
    shortened = SHORT_ROOT.sub(r"sqrt{\1}", shortened)
    return shortened.replace("$", "").strip()


def _formula(answer: str) -> str:
    """The one formula among words; of "$41$ or $42$" and "not $42$" the whole."""
    match = FORMULA.fullmatch(answer)
    return answer if match is None or DOUBT.search(match[1] + match[3]) else match[2]


def _shorten(answer: str) -> str:
    for before, after in REPLACED:
        answer = answer.replace(before, after)
    for expression in REMOVED:
        answer = answer.replace(expression, "")
    for pattern in UNWRAPPED:
        answer = pattern.sub(r"\1", answer)
    return answer


def _is_subsequence(some: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(one in rest for one in some)


def _short_reference(answer: str) -> str:
    reference = reference_of(answer)
    if len(reference) > TAIL:
        raise ReferenceUnusableError(
            f"the answer has more than the {TAIL} characters that are read"
        )
    return reference
