"""math_verify, but for two texts: on one it sleeps, on the other it aborts. Runs in the service's workers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from services.reward.rules import mathematics
from trimaran.rewards import Sample

TARGET = "benchmarks.reward.unruly:check"
CRASH = "the checker crashes on this"
HANG = "the checker hangs on this"


def check(sample: Sample) -> Mapping[str, Any]:
    if sample.text == CRASH:
        os.abort()
    if sample.text == HANG:
        time.sleep(3600)
    return mathematics.math_verify(sample)
