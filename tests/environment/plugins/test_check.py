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


def on(what: str, number: int, answer: Answer) -> Break:
    """The given answer to the `number`-th request of a session to /v1/`what`; 0: to every one."""

    async def changed(request: Request, right: Right) -> Answer:
        if request.path != f"/v1/{what}":
            return await right()
        asked = request.memory.setdefault("asked", [])
        asked.append(request.tree.get("session"))
        if number == asked.count(asked[-1]):
            return answer
        given = await right()
        return answer if number == 0 and given[0] == 200 else given

    return changed


def accepts(refused: int) -> Break:
    """What is to be refused with that status ends the session in peace."""

    async def changed(request: Request, right: Right) -> Answer:
        status, answer = await right()
        return (200, {**OK, "done": True}) if status == refused else (status, answer)

    return changed


async def answers_differ(request: Request, right: Right) -> Answer:
    status, answer = await right()
    return status, answer | {"reward": request.number} if "turn" in request.tree else answer


async def one_world(request: Request, right: Right) -> Answer:
    """Closing one session ends all."""
    stepped = request.memory.setdefault("stepped", set())
    ended = request.memory.setdefault("ended", set())
    status, answer = await right()
    if request.path == "/v1/close":
        ended |= stepped
        stepped.clear()
    if request.path == "/v1/step" and status == 200:
        stepped.add(request.tree["session"])
        if request.tree["session"] in ended:
            return 404, GONE
    return status, answer


async def no_token_needed(request: Request, right: Right) -> Answer:
    return await right(headers={**request.headers, "authorization": f"Bearer {TOKEN}"})


async def hangs(request: Request, right: Right) -> Answer:
    if request.path == "/v1/step":
        await asyncio.sleep(60)
    return await right()


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (on("health", 0, (200, {"status": "unavailable"})), "health", "it says unavailable"),
        (on("step", 0, (200, OK)), "turn", "nothing that the policy could answer"),
        (no_token_needed, "authentication", "compare it before all else"),
        (answers_differ, "idempotency", "keep the last answer"),
        (accepts(409), "order of turns", "status 200 instead of 409"),
        (one_world, "two sessions", "after the other was closed"),
        (on("open", 2, (200, OK)), "opened again", "does not begin again"),
        (accepts(404), "unknown session", "status 200 instead of 404"),
        (on("close", 2, (404, GONE)), "closed twice", "its end is reached"),
        (accepts(422), "errors", "status 200 instead of 422"),
        (hangs, "turn", "no answer within 0.5 s"),
    ],
)
def test_a_plugin_that_is_wrong_in_one_way(change: Break, name: str, words: str) -> None:
    timeout = 0.5 if change is hangs else 20.0
    findings = check(lambda app: Broken(app, change), timeout=timeout)
    assert failed(findings) == [name], findings
    assert words in findings[name].detail
