"""A reward plugin: 1 for an answer of few words that names the sum, half of it for few words."""

from __future__ import annotations

import re

from trimaran.rewards import Sample


def brevity(sample: Sample, words: int = 4) -> dict[str, float]:
    """`words` is how many an answer may have; the score falls to 0 at twice as many."""
    num_words = len(sample.text.split())
    if num_words == 0:
        return {"score": 0.0, "words": 0}
    short = min(1.0, max(0.0, 2 - num_words / words))
    right = sample.answer in re.findall(r"-?\d+", sample.text)
    return {"score": short if right else short / 2, "words": num_words}
