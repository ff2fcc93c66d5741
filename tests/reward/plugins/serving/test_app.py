"""The server that speaks the contract: over real sockets, before a judge that the test holds."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.reward.outcome import Fault, Indigestible, NotApplicable, Outcome, Value
from services.reward.plugins.contract import CONTRACT, Info
from services.reward.plugins.serving.app import make_app
from tests.reward.plugins.serving.schema import schema
from tests.trimaran.plugins.live import serving
from trimaran.plugins.answers import Answers, KeptAnswer, KeyReusedError
from trimaran.plugins.limits import ServerLimits
from trimaran.rewards import Sample

INFO = Info(contract=CONTRACT, name="fake", minimum=-1.0, maximum=100.0, max_samples=50)
JSON = {"Content-Type": "application/json"}


@dataclass
class FakeJudge:
    """Scores by length, or as the test says; `open` lets it answer."""

    outcomes: Callable[[Sequence[Sample]], Sequence[Outcome]] = lambda samples: [
        Value(float(len(sample.text))) for sample in samples
    ]
    calls: list[list[str]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def __call__(self, samples: Sequence[Sample]) -> Sequence[Outcome]:
        self.calls.append([sample.text for sample in samples])
        self.samples += samples
        self.started.put_nowait(None)
        await self.open.wait()
        return self.outcomes(samples)


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def ask(
        self, method: str, path: str, data: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, content and headers."""
        async with self.session.request(
            method, self.url + path, data=data, headers={**JSON, **headers}
        ) as response:
            return response.status, json.loads(await response.read()), response.headers

    async def score(self, *texts: str, key: str = "k", **others: Any) -> tuple[int, Any]:
        samples = [{"text": text} for text in texts]
        body = {"contract": CONTRACT, "idempotency_key": key, "samples": samples, **others}
        return (await self.ask("POST", "/v1/score", json.dumps(body)))[:2]


Scenario = Callable[[Client, FakeJudge], Awaitable[None]]


def play(scenario: Scenario, outcomes: Any = None, *, hold: bool = False, **settings: Any) -> None:
    async def run() -> None:
        judge = FakeJudge(outcomes) if outcomes else FakeJudge()
        if not hold:
            judge.open.set()
        app = make_app(judge, settings.pop("info", INFO), **settings)
        async with (
            asyncio.timeout(60),
            serving(app) as url,
            aiohttp.ClientSession() as session,
        ):
            await scenario(Client(session, url), judge)

    asyncio.run(run())


def is_problem(content: Any) -> bool:
    return {"title", "status", "detail"} <= set(content) and bool(content["detail"])


def test_health_info_and_scores_in_order() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        assert (await client.ask("GET", "/v1/health"))[:2] == (200, {"status": "ok"})
        assert (await client.ask("GET", "/v1/info"))[1] == INFO.model_dump()
        status, answer = await client.score("abc", "", "ab")
        assert status == 200
        assert answer == {
            "contract": CONTRACT,
            "results": [{"score": 3.0}, {"score": 0.0}, {"score": 2.0}],
        }

    play(scenario)


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Value(2.0, {"a": 1.0, "b": math.nan}), {"score": 2.0, "parts": {"a": 1.0}}),
        (Value(math.nan), {"faulted": "the score nan is not within -1 and 100"}),
        (Value(100.5), {"faulted": "the score 100.5 is not within -1 and 100"}),
        (Indigestible("too slow"), {"score": -1.0, "indigestible": "too slow"}),
        (Fault("worker gone"), {"faulted": "worker gone"}),
        (Fault("\ud800"), {"faulted": "?"}),
        (Fault(""), {"faulted": "no reason given"}),
        (NotApplicable(), {"faulted": "the function answered None: it does not apply here"}),
    ],
)
def test_what_each_outcome_becomes(outcome: Outcome, result: Any) -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        status, answer = await client.score("x")
        assert (status, answer["results"]) == (200, [result])

    play(scenario, lambda _: [outcome])


def test_a_key_is_answered_once_and_for_one_request_only() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        first = await client.score("abc")
        assert await client.score("abc") == first
        status, content = await client.score("other")
        assert status == 409
        assert is_problem(content)
        assert judge.calls == [["abc"]]

    play(scenario)


def test_a_caller_that_goes_away_finds_the_answer_when_it_comes_back() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        first = asyncio.create_task(client.score("abc"))
        await judge.started.get()
        first.cancel()
        await asyncio.wait([first])
        judge.open.set()
        assert (await client.score("abc"))[0] == 200
        assert judge.calls == [["abc"]]

    play(scenario, hold=True)


def test_what_was_faulted_is_tried_again_under_the_same_key() -> None:
    outcomes: list[Outcome] = [Fault("worker gone"), Value(1.0)]

    async def scenario(client: Client, judge: FakeJudge) -> None:
        assert "faulted" in (await client.score("x"))[1]["results"][0]
        assert (await client.score("x"))[1]["results"] == [{"score": 1.0}]
        assert (await client.score("x"))[1]["results"] == [{"score": 1.0}]

    play(scenario, lambda _: [outcomes.pop(0)])


def test_a_failure_of_the_server_is_a_problem_and_is_not_kept() -> None:
    def fail_once(samples: Sequence[Sample]) -> Sequence[Outcome]:
        if not failed:
            failed.append(True)
            raise RuntimeError("secret")
        return [Value(1.0)] * len(samples)

    failed: list[bool] = []

    async def scenario(client: Client, judge: FakeJudge) -> None:
        status, content = await client.score("x")
        assert status == 500
        assert is_problem(content)
        assert "secret" not in content["detail"]
        assert (await client.score("x"))[0] == 200

    play(scenario, fail_once)


async def test_answers_are_bounded_in_number_and_bytes() -> None:
    made: list[str] = []

    async def ask(answers: Answers, key: str, size: int = 10) -> bytes:
        async def make() -> KeptAnswer:
            made.append(key)
            return KeptAnswer(bytes(size), final=True)

        return await answers.get_or_make(key, b"d", make)

    for answers in (Answers(max_answers=2), Answers(max_bytes=25)):
        made.clear()
        for key in ("a", "b", "a", "c", "a", "b"):
            await ask(answers, key)
        assert made == ["a", "b", "c", "b"], "b was asked for the longest ago when c came"
    await ask(answers, "large", size=26)
    await ask(answers, "a")
    assert made[-1] == "large", "what is larger than all room displaces nothing"
    with pytest.raises(KeyReusedError):
        await answers.get_or_make("a", b"other", lambda: pytest.fail("made"))


def test_more_requests_than_it_bears_are_asked_to_come_back() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        held = [asyncio.create_task(client.score("x", key=str(n))) for n in range(2)]
        for _ in held:
            await judge.started.get()
        status, content, headers = await client.ask("POST", "/v1/score", b"{}")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert is_problem(content)
        assert (await client.ask("GET", "/v1/health"))[0] == 200
        judge.open.set()
        assert [status for status, _ in await asyncio.gather(*held)] == [200, 200]
        assert (await client.score("x", key="2"))[0] == 200

    play(scenario, hold=True, limits=ServerLimits(max_requests=2))


def test_scoring_has_a_deadline() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        status, content = await client.score("x")
        assert status == 503
        assert "not scored within 0.2 s" in content["detail"]

    play(scenario, hold=True, limits=ServerLimits(work_seconds=0.2))


def test_who_is_still_at_work_when_the_server_ends_is_asked_to_come_back() -> None:
    async def run() -> list[Any]:
        judge, sent = FakeJudge(), []
        body = {"contract": CONTRACT, "idempotency_key": "k", "samples": [{"text": "a"}]}

        async def receive() -> Any:
            return {"type": "http.request", "body": json.dumps(body).encode()}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(name.lower().encode(), value.encode()) for name, value in JSON.items()]
        scope = {"type": "http", "method": "POST", "path": "/v1/score", "headers": headers}
        scope |= {"query_string": b"", "http_version": "1.1", "scheme": "http"}
        task = asyncio.create_task(make_app(judge, INFO)(scope, receive, send))
        await judge.started.get()
        task.cancel()  # as uvicorn does after its grace
        await task
        return sent

    start, content = asyncio.run(run())[:2]
    assert start["status"] == 503
    assert "send it again" in json.loads(content["body"])["detail"]


async def _in_pieces(*pieces: bytes, then: asyncio.Event | None = None) -> Any:
    for piece in pieces:
        yield piece
    if then is not None:
        await then.wait()


def test_a_body_has_a_size_and_a_deadline() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        for data in (bytes(2000), _in_pieces(*[bytes(100)] * 20)):
            status, content, _ = await client.ask("POST", "/v1/score", data)
            assert status == 413
            assert is_problem(content)
        slow = _in_pieces(b"{", then=asyncio.Event())
        status, content, _ = await client.ask("POST", "/v1/score", slow)
        assert status == 408
        assert is_problem(content)
        assert judge.calls == []

    play(scenario, limits=ServerLimits(max_body=1000, body_seconds=0.3))


def test_too_many_samples_or_tokens() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        for count in (51, 1001):
            status, content = await client.score(*["x"] * count)
            assert status == 413
            assert is_problem(content)
        assert (await client.score(*["x"] * 50))[0] == 200
        many = [{"text": "x", "num_tokens": 10**9}] * 2
        assert (await client.score(samples=many, key="2"))[0] == 413

    play(scenario)


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic right", "Bearer right x"])
def test_only_who_has_the_token_is_served(header: str | None) -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        headers = {} if header is None else {"Authorization": header}
        for method, path in (("POST", "/v1/score"), ("GET", "/v1/info")):
            status, content, answered = await client.ask(method, path, b"{", **headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
            assert is_problem(content)
        assert (await client.ask("GET", "/v1/health"))[0] == 200
        assert (await client.ask("GET", "/v1/info", Authorization="bearer right"))[0] == 200

    play(scenario, token="right")


def test_options_are_the_server_s_own() -> None:
    async def scenario(client: Client, judge: FakeJudge) -> None:
        assert (await client.score("x", options={"words": 5}))[0] == 200
        assert (await client.score("x", key="2", options={}))[0] == 200
        status, content = await client.score("x", key="3", options={"words": 6})
        assert status == 422
        assert "start it with --option" in content["detail"]

    play(scenario, options={"words": 5})


def test_the_published_schema_is_current() -> None:
    path = Path(__file__).parents[4] / "docs" / "reward-plugin-v1.json"
    made = schema()
    assert path.read_text(encoding="utf-8") == f"{made}\n", (
        "run: python -m tests.reward.plugins.serving.schema > docs/reward-plugin-v1.json"
    )
    responses = json.loads(made)["paths"]["/v1/score"]["post"]["responses"]
    assert set(responses) == {"200", "401", "408", "409", "413", "422", "500", "503"}
