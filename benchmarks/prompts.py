"""Prompts whose answers run to the full length: every side then makes the same number of tokens."""

import json
from pathlib import Path


def write_prompts(path: Path) -> None:
    """80 rows of {"prompt", "answer"}; SmolLM2 never ends its answer within 24 tokens."""
    rows = [
        {
            "prompt": f"Explain in at least one hundred words how to add {a} and {b} by hand.",
            "answer": str(b),
        }
        for a in range(1, 9)
        for b in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
