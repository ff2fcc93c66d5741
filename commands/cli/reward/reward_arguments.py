"""What the arguments of `trimaran reward serve` mean, and which are refused."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.reward.plugins.contract import MAX_SAMPLES
from services.reward.rules import find_rule
from services.reward.terms import FunctionSpec, rule_function
from trimaran.config import LAST_PORT
from trimaran.errors import InputError
from trimaran.trust.allowed import canonical_target

MIN_MEMORY_MIB = 256


def find_function(
    named: str, options: Mapping[str, Any], minimum: float | None, maximum: float | None
) -> tuple[FunctionSpec, float | None, float | None]:
    """The function and its bounds. A name without a file or module is a built-in rule's."""
    if ":" in named:
        if minimum is not None and maximum is not None and minimum >= maximum:
            raise InputError(f"--minimum {minimum:g} must be less than --maximum {maximum:g}")
        target = canonical_target(named, "FUNCTION")
        module, _, name = target.rpartition(":")
        if name == "*":
            raise InputError(f"{named}: name one function of it")
        if module.endswith(".py") and not Path(module).is_file():
            raise InputError(f"{module}: no such file")
        return FunctionSpec(target, json.dumps(options, sort_keys=True)), minimum, maximum
    rule = find_rule(named, "FUNCTION")
    rule.check_options(options, "--option")
    if minimum is not None or maximum is not None:
        raise InputError(
            f"{named}: a built-in rule knows its bounds; leave --minimum and --maximum out"
        )
    least, most = (bound if math.isfinite(bound) else None for bound in rule.bounds(options))
    return rule_function(rule, options), least, most


def check_numbers(arguments: argparse.Namespace) -> None:
    """Raises InputError that names the option and its range."""
    for option, value, least, most in (
        ("--port", arguments.port, 0, LAST_PORT),
        ("--workers", arguments.workers, 1, math.inf),
        ("--memory-mib", arguments.memory_mib, MIN_MEMORY_MIB, math.inf),
        ("--max-samples", arguments.max_samples, 1, MAX_SAMPLES),
    ):
        if not least <= value <= most:
            above = "" if math.isinf(most) else f" and at most {most}"
            raise InputError(f"{option} {value}: must be at least {least}{above}")
    if not 0 < arguments.timeout < math.inf:
        raise InputError(f"--timeout {arguments.timeout:g}: must be more than 0 seconds")
    for option in ("minimum", "maximum"):
        value = getattr(arguments, option)
        if value is not None and not math.isfinite(value):
            raise InputError(f"--{option} {value}: must be a finite number")
