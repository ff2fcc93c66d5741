"""Calls a rule as the pool does: by its target, with the options as keyword arguments."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from services.reward.rules import find_rule
from trimaran.rewards import Sample

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the datasets in {DATA}")


def judge(rule: str, sample: Sample, **options: Any) -> Any:
    found = find_rule(rule, "test")
    found.check_options(options, "test")
    module, name = found.target.split(":")
    return getattr(importlib.import_module(module), name)(sample, **options)


def score(rule: str, text: str, answer: str = "", **options: Any) -> float:
    judgement = judge(rule, Sample(text=text, answer=answer), **options)
    return judgement["score"] if isinstance(judgement, Mapping) else float(judgement)
