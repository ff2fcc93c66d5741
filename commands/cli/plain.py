"""Text of others on a terminal: what a model has written, or why a run has failed."""

from __future__ import annotations

import re

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tabs and line ends."""


def plain(text: str) -> str:
    r"""A terminal obeys control characters: they are shown in place of that.

    Example: plain("\x1b]0;title\x07") == "\\x1b]0;title\\x07"
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
