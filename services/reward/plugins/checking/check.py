"""The conformance kit: does a plugin keep the contract of contract.py?

A check passes, fails, or is skipped with the reason. One that needs what an earlier one found
missing is skipped, so that one fault is one failure.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import aiohttp

from services.reward.plugins.checking import checks as kit
from services.reward.plugins.checking.check_client import LEAVE_SECONDS, Asker, CheckSkipped, Failed


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    verdict: Literal["pass", "fail", "skipped"]
    detail: str


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a plugin.

    Example:
        async def is_quick(asker: Asker) -> str:
            begin = time.monotonic()
            await asker.score(asker.few(1))
            if (seconds := time.monotonic() - begin) > 1:
                raise Failed(f"one sample takes {seconds:.1f} s; answer within 1 s")
            return f"{seconds:.1f} s"

        findings = await run_checks(url, checks=[*CHECKS, Check("quick", is_quick)])
    """

    name: str
    run: Callable[[Asker], Awaitable[str]]
    """What it saw; raises Failed or Skipped."""
    needs: tuple[str, ...] = ("schema",)
    """Checks that have to pass before."""


CHECKS = (
    Check("connection", kit.connection, needs=()),
    Check("health", kit.health, needs=("connection",)),
    Check("info", kit.info, needs=("connection",)),
    Check("deadline", kit.deadline, needs=("connection",)),
    Check("schema", kit.schema, needs=("deadline",)),
    Check("authentication", kit.authentication),
    Check("batch sizes", kit.batch_sizes),
    Check("determinism", kit.determinism),
    Check("order", kit.order, needs=("determinism",)),
    Check("bounds", kit.bounds, needs=("info", "schema")),
    Check("idempotency", kit.idempotency),
    Check("idempotency: key reused", kit.key_reused),
    Check("errors: malformed JSON", kit.malformed),
    Check("errors: wrong fields", kit.wrong_fields),
    Check("errors: too many samples", kit.too_many_samples),
    Check("Unicode", kit.unicode_texts),
    Check("concurrency", kit.concurrency),
    Check("disconnect", kit.disconnect),
    Check("long answers", kit.long_texts),
)


async def run_checks(
    url: str,
    *,
    token: str | None = None,
    trust: ssl.SSLContext | None = None,
    timeout: float = 30.0,
    show: Callable[[CheckResult], None] | None = None,
    checks: Sequence[Check] = CHECKS,
    leave_seconds: float = LEAVE_SECONDS,
) -> tuple[CheckResult, ...]:
    """One after another; `show` is given each. No request takes longer than `timeout` seconds.

    Example:
        findings = await run_checks("http://127.0.0.1:8700")
        wrong = [finding for finding in findings if finding.verdict == "fail"]
    """
    findings: dict[str, CheckResult] = {}
    # A connection for each request: what one check does to its own is no fault of the next.
    connector = aiohttp.TCPConnector(force_close=True)
    limit = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        asker = Asker(session, url, token, trust, timeout, leave_seconds)
        for check in checks:
            # One that was not asked for is taken to pass.
            missing = [n for n in check.needs if n in findings and findings[n].verdict != "pass"]
            if missing:
                finding = CheckResult(
                    check.name, "skipped", f"needs {missing[0]}, which did not pass"
                )
            else:
                finding = await _run(check, asker)
            findings[check.name] = finding
            if show is not None:
                show(finding)
    return tuple(findings.values())


async def _run(check: Check, asker: Asker) -> CheckResult:
    try:
        return CheckResult(check.name, "pass", _printable(await check.run(asker)))
    except Failed as error:
        return CheckResult(check.name, "fail", _printable(str(error)))
    except CheckSkipped as reason:
        return CheckResult(check.name, "skipped", str(reason))


def _printable(text: str) -> str:
    """A plugin's words go to a terminal: one line, and no control of it."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:1000])
