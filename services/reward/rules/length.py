"""The soft penalty on long answers of DAPO (arXiv:2503.14476, equation 13)."""

from __future__ import annotations

from services.reward.rules.registry import Options
from trimaran.rewards import Sample

DEFAULT_SHARE = 5
"""DAPO's buffer is a fifth of its longest completion: 4,096 of 20,480 tokens."""


def overlong(sample: Sample, max_tokens: int, buffer: int | None = None) -> float:
    """0 up to max_tokens - buffer tokens, from there evenly down to -1 at max_tokens."""
    if buffer is None:
        buffer = max(1, max_tokens // DEFAULT_SHARE)
    excess = len(sample.token_ids) - (max_tokens - buffer)
    return -min(max(excess, 0), buffer) / buffer


def check_buffer(options: Options) -> None:
    """Raises ValueError for a buffer in which even an empty answer lies."""
    max_tokens, buffer = options.get("max_tokens"), options.get("buffer")
    if max_tokens and buffer and buffer > max_tokens:
        raise ValueError(
            f"buffer {buffer} is more than max_tokens {max_tokens}; give a smaller one"
        )
