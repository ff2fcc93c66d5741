r"""The number that a text gives, with its sign, and only where a numeral stands for itself.

In 10^{42}, \sqrt{42}, 1/42, 41 or 42, 42 million and \neq 42 it does not: none of these is 42.
math-verify has no such reading: given GSM8K's whole solutions, it gets 22 wrong and takes 18 with a wrong
last line for right. Only what stands near a numeral on its own line is looked at, so that reading takes
linear time.
"""

from __future__ import annotations

import re
from decimal import Decimal

from services.reward.rules.texts import as_seen, last_match

NEAR = 60
"""Characters on either side of a numeral that can change what it means."""

NUMERAL = re.compile(r"(?:(?<![\w.)])\.)?[0-9]+(?:[.,][0-9]+)*(?:[eE][+-]?[0-9]+)?")
PLAIN = re.compile(
    r"(?=\.?[0-9])(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)?(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,4})?"
)

# What hides a numeral's neighbours, or only looks different.
REWRITTEN = (
    (re.compile(r"<<[^<>]{0,200}>>(?=[-$.0-9])"), ""),  # GSM8K's calculator, before its result
    (re.compile(r"</?[A-Za-z][\w-]{0,20}>|<\|[^<>|]{1,40}\|>"), " "),  # tags, a tokenizer's marks
    (re.compile(r"[-=]{1,2}>|[→⇒]"), "="),
    (re.compile(r"(?<=[0-9])(?:\{,\}|,(?: ?\\! ?)+)(?=[0-9]{3})"), ","),
    (re.compile(r"–(?=[0-9.$\\])"), "-"),
    (re.compile(r"^[ \t]*-[ \t]+(?=\*\*)", re.MULTILINE), ""),  # an item of a list: no sign
    (
        re.compile(
            r"((?:[cmk]m|(?<=[0-9] )m|ft|in(?:ches)?|feet|units?|\})) ?(?:\^\{?[23]\}?|[²³])(?!\w)"
        ),
        r"\1",
    ),
)

OPENING = (
    r"(?:\\(?:boxed|fbox|text[a-z]*|math[a-z]{2}|mbox|underline|emph)\s*\{|\\left|\\[$(\[{,;:! ]"
    r"|\\(?:approx|q?quad|therefore)\b|[(\[{|$€£\"'“`*_~≈#]|[ \t])"
)
LEAD = re.compile(rf"{OPENING}*(?P<sign>[-+]?){OPENING}*$")
# A value that an operator could work on.
OPERAND_BEFORE = re.compile(r"(?:[0-9)\]}!%]|(?<![A-Za-z\\'’])[b-zB-HJ-Z])[ \t]*$")
OPERATOR_BEFORE = re.compile(
    r"""(?:
      [\^/×÷·⋅±√≠≤≥]|!=|[<>]=                         # 10^42, 1/42, ≠ 42
    | \S[ \t]*[<>&]                                   # x > 42; at the start of a line it quotes
    | [0-9][ \t]+:|[0-9)][ \t]*[xX]|\w[ \t]*%         # 3 : 42, 6 x 42, 50 % 42
    | [0-9]\S{0,3}[ \t]*(?:[,;|–—]|,?[ \t](?:and|to|through))   # 41, 42
    | [(\[{,][ \t]*(?:[A-Za-z]|[^\s,]*[\\^+/*-][^\s,]*),   # (x, 42)
    | [0-9].*\b(?:or|nor)|\bbetween
    | \b(?:than|plus|minus|negative|times|over|mod|log|ln|sin|cos|tan|sqrt|root)
    | (?:\bnot|\bcannot|n['’]t|\bnever)(?:[ \t]+\w+){0,2}
    | \\(?!(?:Long)?[rR]ightarrow|implies|to\b|dots|ldots)[A-Za-z]+   # \sqrt 42, \neq 42
    | [-+]                                            # - (-42)
    )[ \t]*$""",
    re.VERBOSE,
)
BRACKET_BEFORE = re.compile(r"(?:(?<!\\)[(\[]|\\\{)[ \t]*[-+]?[ \t]*$")  # [1,104], (4, \pi)
COMMA_BEHIND = re.compile(r"[ \t]*[,;][ \t]*\S")
GLUED_BEFORE = re.compile(r"(?:[A-Za-z0-9_)\]}^]|[0-9]:)$")  # x42, f(42), x_{42}, 3:42

PERCENT_OR_DEGREES = re.compile(r"\s?(?:\\?%|°|\^\s?(?:\\circ|\{\\circ\}))")
WORD = re.compile(
    r"(?P<gap>[ \t-]?)(?:\\(?:text[a-z]*|mbox|mathrm)\s?\{)?[ \t]?(?P<word>[A-Za-z]+)(?:/[A-Za-z]+)?"
)
# Words that make another number of it, and letters that do not: "42k" is 42,000, "42x" a product.
SCALE = re.compile(
    r"(?:hundred|thousand|[mbtr]+illion|dozen)s?|[kKMB]|[bm]n|squared|cubed|factorial|choose"
    r"|plus|minus|divided|half|halves|(?:third|fifth|tenth|hundredth|thousandth)s"
)
UNIT = re.compile(r"st|nd|rd|th|[mck]?m|[mk]?g|[mc]?[lL]|lb|oz|ft|in|yd|mi|[hsCFV]|hr|am|pm")
CLOSING = r"(?:[ \t]|[)\]}$\"'”`|*]|\\right[)\]|.]?|\\[)\]};,:! ])*"
FACTORIAL = re.compile(r"[)\]]?!")  # 42!
OPERATOR_BEHIND = re.compile(
    rf"""\((?![A-Za-z]{{2}})|\[                                            # 42(x + 1)
    | {CLOSING} (?:
        [\^×÷·⋅√] | _(?=[\w{{\\]) | /(?![ ]?[A-Za-z]{{2}})             # 42^x, 42_7, 42/x
      | (?:[<>]=?|[≤≥≠]|!=) [ \t]?[\w\\]                               # 42 < x
      | (?:(?<=\*)|[-+±–]) [ \t]? (?:[A-Za-z](?![A-Za-z])|[\\(])       # 42 * x, 42 + x
      | \\(?!text|mbox|math|right|circ|degree|end|q?quad|approx|dots|ldots|implies|to\b|(?:Long)?[rR]ightarrow) [A-Za-z]   # 42\pi
    )""",
    re.VERBOSE,
)
PHRASE_BEHIND = re.compile(
    rf"{CLOSING},? ?(?:(?:is|was)(?:n['’]t| (?:not|wrong|incorrect|false))|and an? (?:half|third))\b"
)

# "x = " may stand before a reference's number; other words make it something else (June 20).
NAME = re.compile(r"(?:[A-Za-z\\]{1,20}=)?[-+]?")


def bare_number(text: str) -> Decimal | None:
    """The value of a text that is a sign and digits."""
    digits = text.removeprefix("-")
    if not digits or not PLAIN.fullmatch(digits):
        return None
    # Decimal, as int() refuses more than 4300 digits.
    return Decimal(text.replace(",", ""))


def last_number(text: str, within: int | None = None) -> Decimal | None:
    """What the text's last numeral says; None where it does not stand for itself, or there is
    none, or it begins before the last `within` characters."""
    if within is not None:
        text = text[-(within + NEAR) :]
    text = _readable(text)
    numeral = last_match(NUMERAL, text)
    if numeral is None or (within is not None and len(text) - numeral.start() > within):
        return None
    return _value(text, numeral)


def only_number(text: str) -> Decimal | None:
    """As last_number; None also where the text holds several numerals."""
    text = _readable(text)
    numeral = NUMERAL.search(text)
    if numeral is None or NUMERAL.search(text, numeral.end()):
        return None
    return _value(text, numeral)


def plain_number(text: str) -> Decimal | None:
    """The value of a text that is a number and nothing else, a name, a unit and signs round it aside."""
    text = _readable(text)
    numeral = NUMERAL.search(text)
    if numeral is None or not NAME.fullmatch(re.sub(OPENING, "", text[: numeral.start()])):
        return None
    return only_number(text)


def _readable(text: str) -> str:
    text = as_seen(text)
    for pattern, replacement in REWRITTEN:
        text = pattern.sub(replacement, text)
    return text


def _value(text: str, numeral: re.Match[str]) -> Decimal | None:
    before = text[max(0, numeral.start() - NEAR) : numeral.start()].rpartition("\n")[2]
    behind = text[numeral.end() : numeral.end() + NEAR].partition("\n")[0]
    sign = _sign(before)
    if sign is None or not _ends(behind):
        return None
    if BRACKET_BEFORE.search(before) and ("," in numeral.group() or COMMA_BEHIND.match(behind)):
        return None
    return bare_number(sign + numeral.group())


def _sign(before: str) -> str | None:
    """ "-" or "" for a numeral that stands for itself behind this; None for one that does not."""
    lead = LEAD.search(before)
    assert lead is not None  # it can be empty
    gap, rest = lead.group(), before[: lead.start()]
    if OPERATOR_BEFORE.search(rest):
        return None
    operand = OPERAND_BEFORE.search(rest)
    glued = GLUED_BEFORE.search(rest)
    if lead["sign"]:  # x-42 and 9 - 42 subtract
        return None if operand or (glued and gap[0] in "-+") else lead["sign"].strip("+")
    if glued and (not gap or gap[0] in "([{_*"):
        return None
    if operand and (rest.rstrip()[-1].isdigit() or "*" in gap):  # 41 42, x * 42
        return None
    return ""


def _ends(behind: str) -> bool:
    """What follows a numeral leaves it as it is: a unit, a word, a full stop, nothing."""
    if FACTORIAL.match(behind) or PHRASE_BEHIND.match(behind):
        return False
    if behind.lstrip(" ")[:1].isnumeric():  # 42½, 42²
        return False
    if measure := PERCENT_OR_DEGREES.match(behind):
        behind = behind[measure.end() :]
    word = WORD.match(behind)
    if word and not UNIT.fullmatch(word["word"]):
        name, glued = word["word"], not word["gap"]
        shortest = 3 if glued else 1 if name in ("a", "I") else 2
        if SCALE.fullmatch(name) or len(name) < shortest:
            return False
    return not OPERATOR_BEHIND.match(behind, word.end() if word else 0)
