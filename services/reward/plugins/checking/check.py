"""The conformance kit: does a plugin keep the contract of contract.py?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.reward.plugins.checking import checks as kit
from services.reward.plugins.checking.check_client import ScoreAsker
from trimaran.plugins import checking
from trimaran.plugins.checking import Check, CheckResult, PluginAccess

CHECKS: tuple[Check[ScoreAsker], ...] = (
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
    Check("episodes", kit.episodes),
    Check("concurrency", kit.concurrency),
    Check("disconnect", kit.disconnect),
    Check("long answers", kit.long_texts),
)


async def run_checks(
    access: PluginAccess,
    show: Callable[[CheckResult], None] | None = None,
    checks: Sequence[Check[ScoreAsker]] = CHECKS,
) -> tuple[CheckResult, ...]:
    """One after another; `show` is given each.

    Example:
        findings = await run_checks(PluginAccess(url="http://127.0.0.1:8700"))
        wrong = [finding for finding in findings if finding.verdict == "fail"]
    """
    return await checking.run_checks(lambda session: ScoreAsker(session, access), checks, show)
