"""The least that a run's configuration says, for tests of something else."""

from __future__ import annotations

from typing import Any

from trimaran.config import RunConfig, parse_config

LEAST: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"train": "t"},
    "reward": {"rules": {"exact_match": 1}},
}


def configure(**sections: Any) -> RunConfig:
    """Sections replace those of LEAST."""
    return parse_config(LEAST | sections)
