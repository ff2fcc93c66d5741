"""math_verify, in which one text crashes the process. Runs in the service's workers."""

from __future__ import annotations

import os

from services.reward.rules import mathematics
from trimaran.rewards import Sample

TARGET = "benchmarks.reward.unruly:check"
CRASH = "the checker crashes on this"
HANG = r"\boxed{9^{9^{9^{9}}}}"
"""A tower of powers: math-verify computes it until it is ended."""


def check(sample: Sample) -> float:
    if sample.text == CRASH:
        os.abort()
    return mathematics.math_verify(sample)
