"""The conformance kit: does a plugin keep the contract of contract.py?"""

from __future__ import annotations

from collections.abc import Callable

from services.environment.plugins.checking import checks as kit
from services.environment.plugins.checking.asker import DEFAULT_ROW, EpisodeAsker
from services.environment.plugins.contract import PluginRow
from trimaran.plugins import checking
from trimaran.plugins.checking import Check, CheckResult, PluginAccess

TURN = ("turn",)
CHECKS: tuple[Check[EpisodeAsker], ...] = (
    Check("connection", kit.connection, needs=()),
    Check("health", kit.health, needs=("connection",)),
    Check("info", kit.info, needs=("connection",)),
    Check("opening", kit.opening, needs=("connection",)),
    Check("turn", kit.turn, needs=("opening",)),
    Check("authentication", kit.authentication, needs=TURN),
    Check("idempotency", kit.idempotency, needs=TURN),
    Check("order of turns", kit.order, needs=TURN),
    Check("two sessions", kit.two_sessions, needs=TURN),
    Check("opened again", kit.opened_again, needs=TURN),
    Check("unknown session", kit.unknown_session, needs=TURN),
    Check("closed twice", kit.closed_twice, needs=TURN),
    Check("errors", kit.errors, needs=TURN),
    Check("disconnect", kit.disconnect, needs=TURN),
)


async def run_checks(
    access: PluginAccess,
    show: Callable[[CheckResult], None] | None = None,
    row: PluginRow = DEFAULT_ROW,
) -> tuple[CheckResult, ...]:
    """One after another; `show` is given each. Episodes begin with `row`.

    Example:
        findings = await run_checks(PluginAccess(url="http://127.0.0.1:8800"))
        wrong = [finding for finding in findings if finding.verdict == "fail"]
    """
    return await checking.run_checks(
        lambda session: EpisodeAsker(session, access, row), CHECKS, show
    )
