"""SandboxFusion's /run_code as a scorer: the rule `code`, with its programs run elsewhere.

Contract: sandbox/server/sandbox_api.py and sandbox/runners/types.py of
github.com/bytedance/SandboxFusion. `SandboxError` is the sandbox's own and a fault; a program that
fails, runs out of time or memory, or prints without end is a wrong answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from services.reward.outcome import Fault, Outcome, Value
from services.reward.plugins.calling.protocols import Send
from services.reward.rules.code.rule import OPTIONS, Program, programs
from trimaran.errors import InputError
from trimaran.plugins.exchange import AnswerTooLargeError
from trimaran.plugins.forms import CallError, Lenient, encode, parse
from trimaran.rewards import ReferenceUnusableError, Sample

MAX_OUTPUT_BYTES = 16 << 20
"""The size of one answer, which holds what the program printed."""
STOPPED = 137
"""Exit code of a program whose own is not reported, as after a time limit."""


class _Run(Lenient):
    return_code: int | None = None
    stdout: str | None = None


class _RunAnswer(Lenient):
    status: Literal["Success", "Failed", "SandboxError"]
    message: str = ""
    run_result: _Run | None = None


def check_options(options: Mapping[str, Any], key: str) -> None:
    """The rule `code`'s, but for `timeout`: all programs of an answer share the plugin's deadline.

    Raises InputError.
    """
    known = {name: fits for name, fits in OPTIONS.items() if name != "timeout"}
    for name, value in options.items():
        if name not in known or not known[name](value):
            raise InputError(
                f"{key}.{name}: {value!r} is not an option of sandbox_fusion; it takes"
                f" {', '.join(known)} as the rule code does"
            )


async def ask_sandbox(
    send: Send, samples: Sequence[Sample], options: Mapping[str, Any]
) -> Sequence[Outcome]:
    """All programs of a sample at a time. Raises CallError."""
    return [await _judge(send, sample, **options) for sample in samples]


async def _judge(
    send: Send,
    sample: Sample,
    *,
    partial: bool = False,
    whole: bool = False,
    test_timeout: float = 4.0,
    memory_mib: int = 1024,
    max_tests: int | None = None,
) -> Outcome:
    try:
        made = programs(sample, whole=whole, max_tests=max_tests)
    except ReferenceUnusableError as error:
        return Fault(str(error))
    found = await asyncio.gather(
        *(_run(send, program, test_timeout, memory_mib) for program in made),
        return_exceptions=True,  # so that none is left running behind the first that fails
    )
    passed: list[bool] = []
    for tests in found:
        if isinstance(tests, ReferenceUnusableError):
            return Fault(str(tests))
        if isinstance(tests, BaseException):
            raise tests
        passed += tests
    share = sum(passed) / len(passed) if passed else 0.0
    return Value(share if partial else float(share == 1.0), {"passed": share})


async def _run(
    send: Send, program: Program, test_timeout: float, memory_mib: int
) -> Sequence[bool]:
    """One a test."""
    request = {
        "language": "python",
        "code": program.source,
        "stdin": program.stdin,
        "run_timeout": test_timeout * program.num_tests,
        "memory_limit_MB": memory_mib,
    }
    try:
        answer = parse(_RunAnswer, await send(encode(request), MAX_OUTPUT_BYTES))
    except AnswerTooLargeError:
        return [False] * program.num_tests
    if answer.status == "SandboxError":
        raise CallError(f"the sandbox failed: {answer.message}")
    run = answer.run_result or _Run()
    return program.passed(run.stdout or "", STOPPED if run.return_code is None else run.return_code)
