"""A right plugin passes every check; one that is wrong in one way fails exactly that check."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import count
from typing import Any

import pytest

from services.reward.outcome import Outcome, Value
from services.reward.plugins.checking.check import CHECKS, run_checks
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from tests.trimaran.plugins.broken import Answer, Break, Broken, Request, Right
from tests.trimaran.plugins.live import serving
from trimaran.plugins.checking import Check, CheckResult, PluginAccess
from trimaran.rewards import Sample

TOKEN = "a-token"
INFO = Info(contract=CONTRACT, name="length", minimum=0.0, maximum=1.0)


async def by_length(samples: Sequence[Sample]) -> list[Outcome]:
    return [Value(min(len(sample.text), 1000) / 1000) for sample in samples]


def samples_of(request: Request) -> list[Any]:
    samples = request.tree.get("samples")
    return samples if isinstance(samples, list) else []


def broken(change: Break) -> Broken:
    return Broken(make_app(by_length, INFO, TOKEN), change)


def check(
    app: Any,
    *,
    token: str | None = TOKEN,
    timeout: float = 30,
    checks: Sequence[Check[Any]] = CHECKS,
) -> dict[str, CheckResult]:
    async def run() -> Sequence[CheckResult]:
        async with serving(app) as url:
            access = PluginAccess(url=url, token=token, timeout=timeout, leave_seconds=0.02)
            return await run_checks(access, checks=checks)

    return {finding.check: finding for finding in asyncio.run(run())}


def names(findings: dict[str, CheckResult], verdict: str) -> list[str]:
    return [name for name, finding in findings.items() if finding.verdict == verdict]


def test_a_right_plugin_passes_every_check(caplog: pytest.LogCaptureFixture) -> None:
    findings = check(make_app(by_length, INFO, TOKEN))
    assert "a request failed" not in caplog.text, "callers that go away are no failure"
    assert names(findings, "pass") == [check.name for check in CHECKS], findings


@pytest.mark.parametrize("max_samples", [1, 3])
def test_a_right_plugin_that_takes_few_samples_at_a_time_does_not_fail(max_samples: int) -> None:
    info = INFO.model_copy(update={"max_samples": max_samples})
    findings = check(make_app(by_length, info, TOKEN), checks=QUICK)
    assert names(findings, "fail") == [], findings
    assert names(findings, "skipped") == (["order"] if max_samples == 1 else [])


def results_changed(change: Callable[[Request, list[Any]], Any]) -> Break:
    async def changed(request: Request, right: Right) -> Answer:
        status, answer = await right()
        if status == 200 and "results" in answer:
            answer["results"] = change(request, answer["results"])
        return status, answer

    return changed


def says(when: Callable[[Request], bool], status: int = 500, answer: Any = None) -> Break:
    async def changed(request: Request, right: Right) -> Answer:
        return (status, answer or {"detail": "sorry"}) if when(request) else await right()

    return changed


def hears(*others: tuple[bytes, bytes]) -> Break:
    """It reads each first text as the second."""

    async def changed(request: Request, right: Right) -> Answer:
        return await right(
            body=reduce(lambda body, pair: body.replace(*pair), others, request.body)
        )

    return changed


def drifting(request: Request, results: list[Any]) -> list[Any]:
    if len(results) != 1:
        return results
    return [{"score": results[0]["score"] / (1 + request.number)}]


async def hangs(request: Request, right: Right) -> Answer:
    if request.path == "/v1/score":
        await asyncio.Event().wait()
    return await right()


async def ignores_tokens(request: Request, right: Right) -> Answer:
    return await right(headers=request.headers | {"authorization": f"Bearer {TOKEN}"})


async def goes_by_keys_alone(request: Request, right: Right) -> Answer:
    """A cache that never compares the request."""
    key = request.tree.get("idempotency_key")
    if key in request.memory:
        return 200, request.memory[key]
    status, answer = await right()
    if status == 200 and key:
        request.memory[key] = answer
    return status, answer


async def slow_keys(request: Request, right: Right) -> Answer:
    """Two at once under one key are both scored, and differ."""
    if "options" in request.tree or len(samples_of(request)) != 4:
        return await right()
    return 200, {"contract": CONTRACT, "results": [{"score": request.number / 1000}] * 4}


async def mixes_callers_up(request: Request, right: Right) -> Answer:
    """Answers with what another request, under way at the same time, asked for."""
    if len(samples_of(request)) != 1 or "text" not in samples_of(request)[0]:
        return await right()
    under_way = request.memory.setdefault("under_way", {})
    under_way[request.number] = request.body
    try:
        await asyncio.sleep(0.02)
        others = [body for number, body in under_way.items() if number != request.number]
        return await right(body=others[0] if others else request.body)
    finally:
        del under_way[request.number]


UNWELL = {"status": "unavailable"}
FAULTS: dict[str, tuple[Break, str]] = {
    "ill": (says(lambda r: r.path == "/v1/health", 200, UNWELL), "health"),
    "no info": (says(lambda r: r.path == "/v1/info", 200, {"name": "x"}), "info"),
    "hangs": (hangs, "deadline"),
    "score and faulted": (
        results_changed(lambda _, r: [x | {"faulted": "or not"} for x in r]),
        "schema",
    ),
    "wrong order": (results_changed(lambda _, r: sorted(r, key=str)), "order"),
    "drifts": (results_changed(drifting), "determinism"),
    "out of bounds": (
        results_changed(lambda _, r: [{"score": 2 * x["score"] + 1} for x in r]),
        "bounds",
    ),
    "accepts without token": (ignores_tokens, "authentication"),
    "keys alone": (goes_by_keys_alone, "idempotency: key reused"),
    "another answer at once": (slow_keys, "idempotency"),
    "takes NaN": (hears((b"NaN", b"1"), (b'{"x": 1}', b"{}")), "errors: malformed JSON"),
    "any contract": (hears((b"reward/0", b"reward/1")), "errors: wrong fields"),
    "ignores unknown fields": (hears((b', "smaples": []', b"")), "errors: wrong fields"),
    "500 on too many": (says(lambda r: len(samples_of(r)) > 1000), "errors: too many samples"),
    "500 on NUL": (says(lambda r: rb"\u0000" in r.body), "Unicode"),
    "dies of a disconnect": (says(lambda r: "left" in r.memory), "disconnect"),
    "mixes callers up": (mixes_callers_up, "concurrency"),
    "dies of 10 MB": (says(lambda r: len(r.body) > 5_000_000), "long answers"),
}
QUICK = [check for check in CHECKS if check.name != "long answers"]


@pytest.mark.e2e
@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_the_check_that_should(name: str) -> None:
    change, line = FAULTS[name]
    checks = CHECKS if line == "long answers" else QUICK
    findings = check(broken(change), timeout=1.0 if name == "hangs" else 30.0, checks=checks)
    assert names(findings, "fail") == [line], findings


def test_what_cannot_be_judged_is_skipped_with_its_reason() -> None:
    async def constant(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(1.0)] * len(samples)

    findings = check(make_app(constant, Info(contract=CONTRACT, name="constant")), token=None)
    skipped = {name: findings[name].detail for name in names(findings, "skipped")}
    assert list(skipped) == ["authentication", "order", "bounds"]
    assert "give --token-variable" in skipped["authentication"]
    assert "same score" in skipped["order"]
    assert "declare" in skipped["bounds"]
    assert names(findings, "fail") == []


def test_chance_is_allowed_where_it_is_declared() -> None:
    numbers = count()

    async def chance(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(float(next(numbers))) for _ in samples]

    info = Info(contract=CONTRACT, name="chance", deterministic=False)
    findings = check(make_app(chance, info), token=None)
    assert names(findings, "fail") == []
    assert {"determinism", "order"} < set(names(findings, "skipped"))


def test_without_the_token_that_it_needs() -> None:
    findings = check(make_app(by_length, INFO, TOKEN), token=None)
    assert names(findings, "fail") == ["info", "schema"]
    assert "401" in findings["schema"].detail


def test_where_nothing_listens() -> None:
    findings = asyncio.run(run_checks(PluginAccess(url="http://127.0.0.1:9", timeout=5)))
    assert [one.check for one in findings if one.verdict == "fail"] == ["connection"]


def test_a_plugin_s_words_do_not_reach_the_terminal_as_they_are() -> None:
    name = "\x1b]0;title\x07 \n fine"
    app = make_app(by_length, Info(contract=CONTRACT, name=name, max_samples=3))
    detail = check(app, token=None, checks=CHECKS[:3])["info"].detail
    assert detail.isprintable()
    assert "fine, at most 3 samples" in detail
