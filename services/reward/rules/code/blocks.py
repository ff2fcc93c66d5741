"""Which part of a text is the program. Linear in the length of the text. Pure.

Fences are CommonMark's (spec.commonmark.org, 4.5), with two differences for texts of models: a
fence that names a language always opens a block, so that one which was left open before it does
not swallow it; and tags of reasoning and answers may stand beside a fence on its line.
"""

from __future__ import annotations

import re
import textwrap

from services.reward.rules.texts import last_match

PYTHON_TAGS = ("python", "py", "python3")
REASONING_END = re.compile(r"""</think>(?!['"\\)])""")
"""Not where a program has it in a text."""
INDENT = 3
"""How much further in than its opening fence a closing one may stand."""

_TAG = r"</?(?:think|answer)>"
# Possessive throughout: a line that is no fence is left in linear time.
_FENCE = re.compile(rf"(\s*+)(?:{_TAG}\s*+)*+(`{{3,}}+)[ \t]*+([^`\s<]*+)[^`]*+")


def last_code_block(text: str) -> str | None:
    """The last fenced block that says python; without one the last that names no language.

    Blocks behind the end of the reasoning go before those in it. One that is not closed does not
    count.
    """
    reasoning = last_match(REASONING_END, text)
    block = _last_block(text[reasoning.end() :]) if reasoning else None
    return _last_block(text) if block is None else block


def _last_block(text: str) -> str | None:
    python = plain = opened = None
    lines: list[str] = []
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line) if "```" in line else None
        if fence is None:
            lines.append(line)
            continue
        indent, marks, tag = len(fence[1].expandtabs()), len(fence[2]), fence[3].lower()
        if opened is not None and indent > opened[0] + INDENT:
            lines.append(line)
        elif tag or opened is None:
            opened, lines = (indent, marks, tag), []
        elif marks < opened[1]:
            lines.append(line)
        else:
            block = textwrap.dedent("\n".join(lines))
            if opened[2] in PYTHON_TAGS:
                python = block
            elif not opened[2]:
                plain = block
            opened = None
    return plain if python is None else python
