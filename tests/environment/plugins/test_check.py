"""A right plugin passes every check; one that is wrong in one way fails exactly that check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from services.environment.plugins.checking.check import run_checks
from tests.environment.plugins.served import TOKEN, served
from tests.environment.worlds import Worlds
from tests.trimaran.plugins.broken import Answer, Break, Broken, Request, Right
from trimaran.plugins.checking import CheckResult, PluginAccess

OK = {"contract": "trimaran.environment/1"}
GONE = {"detail": "there is no such session"}


def check(
    changed: Callable[[Any], Any] = lambda app: app, token: str | None = TOKEN, timeout: float = 20
) -> dict[str, CheckResult]:
    async def run() -> Sequence[CheckResult]:
        async with served(Worlds(), TOKEN, changed) as url:
            access = PluginAccess(url=url, token=token, timeout=timeout, leave_seconds=0.05)
            return await run_checks(access)

    return {finding.check: finding for finding in asyncio.run(run())}


def failed(findings: dict[str, CheckResult]) -> list[str]:
    return [name for name, finding in findings.items() if finding.verdict == "fail"]


def test_without_the_token_that_it_needs() -> None:
    findings = check(token=None)
    assert failed(findings) == ["info", "opening"]
    assert findings["turn"].verdict == "skipped"


def path(request: Request) -> str:
    return request.path.removeprefix("/v1/")


async def answers_differ(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return status, answer | {"reward": request.number} if path(request) == "step" else answer


async def any_turn(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return (200, {**OK, "done": True}) if status == 409 else (status, answer)


async def one_world(request: Request, right: Right) -> Answer:
    """Closing one session ends all."""
    stepped = request.memory.setdefault("stepped", set())
    ended = request.memory.setdefault("ended", set())
    status, answer = await right()
    if path(request) == "close":
        ended |= stepped
        stepped.clear()
    if path(request) == "step" and status == 200:
        stepped.add(request.tree["session"])
        if request.tree["session"] in ended:
            return 404, GONE
    return status, answer


async def opens_once(request: Request, right: Right) -> Answer:
    opened = request.memory.setdefault("opened", [])
    if path(request) == "open":
        opened.append(request.tree["session"])
        if opened.count(request.tree["session"]) == 2:
            return 200, OK
    return await right()


async def unknown_is_new(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return (200, {**OK, "done": True}) if status == 404 else (status, answer)


async def closes_once(request: Request, right: Right) -> Answer:
    closed = request.memory.setdefault("closed", [])
    if path(request) == "close":
        closed.append(request.tree["session"])
        if closed.count(request.tree["session"]) == 2:
            return 404, GONE
    return await right()


async def lenient(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return (200, {**OK, "done": True}) if status == 422 else (status, answer)


async def no_token_needed(request: Request, right: Right) -> Answer:
    return await right(headers={**request.headers, "authorization": f"Bearer {TOKEN}"})


async def says_nothing(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return status, {**OK} if path(request) == "step" and status == 200 else answer


async def unwell(request: Request, right: Right) -> Answer:
    return (200, {"status": "unavailable"}) if path(request) == "health" else await right()


async def hangs(request: Request, right: Right) -> Answer:
    if path(request) == "step":
        await asyncio.sleep(60)
    return await right()


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (unwell, "health", "it says unavailable"),
        (says_nothing, "turn", "nothing that the policy could answer"),
        (no_token_needed, "authentication", "compare it before all else"),
        (answers_differ, "idempotency", "keep the last answer"),
        (any_turn, "order of turns", "status 200 instead of 409"),
        (one_world, "two sessions", "after the other was closed"),
        (opens_once, "opened again", "does not begin again"),
        (unknown_is_new, "unknown session", "status 200 instead of 404"),
        (closes_once, "closed twice", "its end is reached"),
        (lenient, "errors", "status 200 instead of 422"),
        (hangs, "turn", "no answer within 0.5 s"),
    ],
)
def test_a_plugin_that_is_wrong_in_one_way(change: Break, name: str, words: str) -> None:
    timeout = 0.5 if change is hangs else 20.0
    findings = check(lambda app: Broken(app, change), timeout=timeout)
    assert failed(findings) == [name], findings
    assert words in findings[name].detail
