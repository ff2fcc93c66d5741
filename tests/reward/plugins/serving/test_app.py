"""The server that speaks the contract: over real sockets, before a judge that the test holds."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
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


def by_length(samples: Sequence[Sample]) -> Sequence[Outcome]:
    return [Value(float(len(sample.text))) for sample in samples]


@dataclass
class FakeJudge:
    """Scores as the test says; `open` lets it answer."""

    outcomes: Callable[[Sequence[Sample]], Sequence[Outcome]] = by_length
    calls: list[list[str]] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    started: asyncio.Queue[None] = field(default_factory=asyncio.Queue)

    async def __call__(self, samples: Sequence[Sample]) -> Sequence[Outcome]:
        self.calls.append([sample.text for sample in samples])
        self.started.put_nowait(None)
        await self.open.wait()
        return self.outcomes(samples)


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def ask(
        self, method: str, path: str, data: Any = None, **headers: str
    ) -> tuple[int, Any, Any]:
        """Status, content and headers. Whatever is refused is refused with a Problem."""
        async with self.session.request(
            method, self.url + path, data=data, headers={**JSON, **headers}
        ) as response:
            content = json.loads(await response.read())
            assert response.status == 200 or {"title", "status", "detail"} <= set(content)
            return response.status, content, response.headers

    async def score(self, *texts: str, key: str = "k", **others: Any) -> tuple[int, Any]:
        samples = [{"text": text} for text in texts]
        body = {"contract": CONTRACT, "idempotency_key": key, "samples": samples, **others}
        return (await self.ask("POST", "/v1/score", json.dumps(body)))[:2]


@asynccontextmanager
async def served(
    outcomes: Any = by_length, *, hold: bool = False, **settings: Any
) -> AsyncIterator[tuple[Client, FakeJudge]]:
    judge = FakeJudge(outcomes)
    if not hold:
        judge.open.set()
    app = make_app(judge, INFO, **settings)
    async with serving(app) as url, aiohttp.ClientSession() as session:
        yield Client(session, url), judge


async def test_health_info_and_scores_in_order() -> None:
    async with served() as (client, _):
        assert (await client.ask("GET", "/v1/health"))[:2] == (200, {"status": "ok"})
        assert (await client.ask("GET", "/v1/info"))[1] == INFO.model_dump()
        results = [{"score": 3.0}, {"score": 0.0}, {"score": 2.0}]
        answer = {"contract": CONTRACT, "results": results}
        assert await client.score("abc", "", "ab") == (200, answer)


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Value(2.0, {"a": 1.0, "b": math.nan}), {"score": 2.0, "parts": {"a": 1.0}}),
        (Value(math.nan), {"faulted": "the score nan is not within -1 and 100"}),
        (Value(100.5), {"faulted": "the score 100.5 is not within -1 and 100"}),
        (Indigestible("too slow"), {"score": -1.0, "indigestible": "too slow"}),
        (Fault("\ud800"), {"faulted": "?"}),
        (Fault(""), {"faulted": "no reason given"}),
        (NotApplicable(), {"faulted": "the function answered None: it does not apply here"}),
    ],
)
async def test_what_each_outcome_becomes(outcome: Outcome, result: Any) -> None:
    async with served(lambda _: [outcome]) as (client, _):
        status, answer = await client.score("x")
        assert (status, answer["results"]) == (200, [result])


async def test_a_key_is_answered_once_and_for_one_request_only() -> None:
    async with served() as (client, judge):
        first = await client.score("abc")
        assert await client.score("abc") == first
        assert (await client.score("other"))[0] == 409
        assert judge.calls == [["abc"]]


async def test_a_caller_that_goes_away_finds_the_answer_when_it_comes_back() -> None:
    async with served(hold=True) as (client, judge):
        first = asyncio.create_task(client.score("abc"))
        await judge.started.get()
        first.cancel()
        await asyncio.wait([first])
        judge.open.set()
        assert (await client.score("abc"))[0] == 200
        assert judge.calls == [["abc"]]


async def test_what_was_faulted_is_tried_again_under_the_same_key() -> None:
    outcomes: list[Outcome] = [Fault("worker gone"), Value(1.0)]
    async with served(lambda _: [outcomes.pop(0)]) as (client, _):
        assert "faulted" in (await client.score("x"))[1]["results"][0]
        for _ in range(2):
            assert (await client.score("x"))[1]["results"] == [{"score": 1.0}]


async def test_a_failure_of_the_server_is_a_problem_and_is_not_kept() -> None:
    failures = [RuntimeError("secret")]

    def fail_once(samples: Sequence[Sample]) -> Sequence[Outcome]:
        if failures:
            raise failures.pop()
        return [Value(1.0)] * len(samples)

    async with served(fail_once) as (client, _):
        status, content = await client.score("x")
        assert status == 500
        assert "secret" not in content["detail"]
        assert (await client.score("x"))[0] == 200


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


async def test_more_requests_than_it_bears_are_asked_to_come_back() -> None:
    async with served(hold=True, limits=ServerLimits(max_requests=2)) as (client, judge):
        held = [asyncio.create_task(client.score("x", key=str(n))) for n in range(2)]
        for _ in held:
            await judge.started.get()
        status, _, headers = await client.ask("POST", "/v1/score", b"{}")
        assert (status, headers["Retry-After"]) == (503, "1")
        assert (await client.ask("GET", "/v1/health"))[0] == 200
        judge.open.set()
        assert [status for status, _ in await asyncio.gather(*held)] == [200, 200]
        assert (await client.score("x", key="2"))[0] == 200


async def test_scoring_has_a_deadline() -> None:
    async with served(hold=True, limits=ServerLimits(work_seconds=0.2)) as (client, _):
        status, content = await client.score("x")
        assert status == 503
        assert "not scored within 0.2 s" in content["detail"]


async def test_who_is_still_at_work_when_the_server_ends_is_asked_to_come_back() -> None:
    judge, sent = FakeJudge(), list[Any]()
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
    start, content = sent[:2]
    assert start["status"] == 503
    assert "send it again" in json.loads(content["body"])["detail"]


async def test_a_body_has_a_size_and_a_deadline() -> None:
    async def in_pieces(*pieces: bytes, ends: bool = True) -> Any:
        for piece in pieces:
            yield piece
        if not ends:
            await asyncio.Event().wait()

    async with served(limits=ServerLimits(max_body=1000, body_seconds=0.3)) as (client, judge):
        for data, refused in (
            (bytes(2000), 413),
            (in_pieces(*[bytes(100)] * 20), 413),
            (in_pieces(b"{", ends=False), 408),
        ):
            assert (await client.ask("POST", "/v1/score", data))[0] == refused
        assert judge.calls == []


async def test_too_many_samples_or_tokens() -> None:
    async with served() as (client, _):
        for count in (51, 1001):
            assert (await client.score(*["x"] * count))[0] == 413
        assert (await client.score(*["x"] * 50))[0] == 200
        many = [{"text": "x", "num_tokens": 10**9}] * 2
        assert (await client.score(samples=many, key="2"))[0] == 413


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic right", "Bearer right x"])
async def test_only_who_has_the_token_is_served(header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    async with served(token="right") as (client, _):
        for method, path in (("POST", "/v1/score"), ("GET", "/v1/info")):
            status, _, answered = await client.ask(method, path, b"{", **headers)
            assert (status, answered["WWW-Authenticate"]) == (401, "Bearer")
        assert (await client.ask("GET", "/v1/health"))[0] == 200
        assert (await client.ask("GET", "/v1/info", Authorization="bearer right"))[0] == 200


async def test_options_are_the_server_s_own() -> None:
    async with served(options={"words": 5}) as (client, _):
        assert (await client.score("x", options={"words": 5}))[0] == 200
        assert (await client.score("x", key="2", options={}))[0] == 200
        status, content = await client.score("x", key="3", options={"words": 6})
        assert status == 422
        assert "start it with --option" in content["detail"]


def test_the_published_schema_is_current() -> None:
    path = Path(__file__).parents[4] / "docs" / "reward-plugin-v1.json"
    made = schema()
    assert path.read_text(encoding="utf-8") == f"{made}\n", (
        "run: python -m tests.reward.plugins.serving.schema > docs/reward-plugin-v1.json"
    )
    responses = json.loads(made)["paths"]["/v1/score"]["post"]["responses"]
    assert set(responses) == {"200", "401", "408", "409", "413", "422", "500", "503"}
