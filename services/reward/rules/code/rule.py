"""The rule `code`: the answer's Python runs against the tests of its row, in a sandbox.

docs/reward-code.md has the formats of tests, and what the sandbox stops and what it does not.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from services.reward.rules.code.blocks import last_code_block
from services.reward.rules.code.programs import make_programs
from services.reward.rules.code.tests import read_tests
from services.reward.rules.code.verdicts import JudgedTests, Program
from services.reward.rules.registry import Options
from trimaran.rewards import Sample
from trimaran.sandbox.run import SandboxLimits, run, run_asking

OPTIONS = {
    "partial": lambda value: isinstance(value, bool),
    "whole": lambda value: isinstance(value, bool),
    "test_timeout": lambda value: _is_number(value) and 0 < value <= 3600,
    "timeout": lambda value: _is_number(value) and 0 < value <= 3600,
    "memory_mib": lambda value: _is_number(value, int) and 64 <= value <= 1 << 20,
    "max_tests": lambda value: value is None or (_is_number(value, int) and value > 0),
}


def code(
    sample: Sample,
    *,
    partial: bool = False,
    whole: bool = False,
    test_timeout: float = 4.0,
    timeout: float = 8.0,
    memory_mib: int = 1024,
    max_tests: int | None = None,
) -> Mapping[str, float]:
    """1 when all tests pass, or their share with `partial`; the share is also a part, `passed`.

    `test_timeout` and `timeout` are seconds for one test and for all of them; a test that is not
    reached in time has failed. Keep `timeout` below `reward.timeout`. Of many pairs, only the
    first `max_tests` are run.

    Raises ReferenceUnusableError, and SandboxError where this host cannot confine a program.
    """
    made = programs(sample, whole=whole, max_tests=max_tests)
    passed = run_programs(made, test_timeout, time.monotonic() + timeout, memory_mib)
    share = sum(passed) / len(passed) if passed else 0.0
    return {"score": share if partial else float(share == 1.0), "passed": share}


def programs(
    sample: Sample, *, whole: bool = False, max_tests: int | None = None, token: str | None = None
) -> tuple[Program, ...]:
    """What must run to judge this answer; nothing where it holds no code.

    Pure once `token`, the mark of the harness's own lines, is given. Raises
    ReferenceUnusableError.
    """
    tests = read_tests(sample.answer)
    source = sample.text if whole else last_code_block(sample.text)
    if source is None:
        return ()
    return make_programs(source, tests, sample.extras, token or secrets.token_hex(16), max_tests)


def run_programs(
    made: Sequence[Program], test_timeout: float, deadline: float, memory_mib: int
) -> list[bool]:
    """One a test, in order. The programs run one after the other.

    Raises ReferenceUnusableError where the tests hand the answer what cannot travel.
    """
    passed: list[bool] = []
    for program in made:
        seconds = min(test_timeout * program.num_tests, deadline - time.monotonic())
        if seconds <= 0:
            passed += [False] * program.num_tests
            continue
        limits = SandboxLimits(seconds, memory_mib)
        if isinstance(program, JudgedTests):
            passed += program.passed(run_asking(program.judge, program.answer, limits), 0)
        else:
            done = run(program.source, program.stdin, limits)
            passed += program.passed(done.stdout, done.exit_code)
    return passed


def check_reference(answer: str, options: Options) -> None:
    read_tests(answer)


def _is_number(value: Any, kind: type = int | float) -> bool:  # type: ignore[assignment]
    return isinstance(value, kind) and not isinstance(value, bool)
