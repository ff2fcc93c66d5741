"""What a rule or a function takes for the final answer, as a short text that votes are counted by."""

from __future__ import annotations

import hashlib
from typing import Any

MAX_CHARACTERS = 200
"""A longer text ends in a digest, so that two that differ only behind it are two answers."""
DIGEST_CHARACTERS = 16


def as_vote(prediction: Any) -> str:
    """Without white space at its ends; "" for None. Foreign code may give anything: what has no text, such as an
    integer of more digits than Python writes, has no vote, and its score counts all the same.

    Example: as_vote(" 42 ") == "42"
    """
    try:
        text = "" if prediction is None else str(prediction).strip()
    except Exception:
        return ""
    data = text.encode("utf-8", "replace")
    if len(text) <= MAX_CHARACTERS:
        return data.decode()
    digest = hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]
    return f"{data.decode()[: MAX_CHARACTERS - DIGEST_CHARACTERS - 1]}…{digest}"
