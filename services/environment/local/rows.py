"""A dataset's row as user code gets it."""

from __future__ import annotations

from typing import Any

from trimaran.data.messages import trl_message
from trimaran.types import Prompt


def row_of(prompt: Prompt, seed: int) -> dict[str, Any]:
    """As `trimaran.episodes.Row`."""
    return {
        "prompt_id": prompt.prompt_id,
        "task": prompt.task,
        "answer": prompt.answer,
        "extras": dict(prompt.extras),
        "messages": list(map(trl_message, prompt.messages)),
        "seed": seed,
    }
