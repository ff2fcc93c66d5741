"""The client against real servers that do what they should not."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.reward.outcome import Fault, Indigestible, Outcome, Value
from services.reward.plugins.calling import breaker
from services.reward.plugins.calling.client import PluginJudge
from services.reward.plugins.calling.protocols import score_request
from services.reward.plugins.contract import CONTRACT, Info, ScoreRequest
from services.reward.plugins.serving.app import make_app
from services.reward.plugins.serving.app_forms import sample_of
from services.reward.terms import PluginSpec
from tests.trimaran.plugins import hostile
from tests.trimaran.plugins.hostile import Server, answer, of_texts, results
from tests.trimaran.plugins.live import serving
from trimaran.config import PluginSection
from trimaran.errors import InputError
from trimaran.plugins import caller
from trimaran.rewards import Sample
from trimaran.trust.allowed import Allowed
from trimaran.types import Message, ToolCall

PATIENT = 60.0
"""Deadline of calls that are not meant to reach it."""
SHORT = 1.0
"""Of calls that are."""


def spec_of(url: str, options: dict[str, Any] | None = None, **keys: Any) -> PluginSpec:
    section = PluginSection.model_validate({"url": url, "timeout": PATIENT, **keys})
    return PluginSpec(section, json.dumps(options or {}))


def host_of(spec: PluginSpec) -> str:
    return "/".join(spec.plugin.url.split("/")[:3])


@asynccontextmanager
async def judging(*specs: PluginSpec, allow: Sequence[str] = ()) -> AsyncIterator[PluginJudge]:
    allowed = Allowed.from_entries([*(host_of(spec) for spec in specs), *allow])
    async with PluginJudge(list(specs), allowed) as judge:
        yield judge


def texts(*given: str) -> list[Sample]:
    return [Sample(text, "42") for text in given]


def judged(
    *replies: hostile.Reply, info: Any = hostile.INFO, count: int = 1, **keys: Any
) -> tuple[tuple[Outcome, ...], Server]:
    """What comes of `count` completions at a server that gives `replies`."""

    async def run() -> tuple[tuple[Outcome, ...], Server]:
        async with Server(*replies, info=info) as server:
            spec = spec_of(server.url, **keys)
            async with judging(spec) as judge:
                return await judge.judge(spec, texts(*map(str, range(count)))), server

    return asyncio.run(run())


def reason(*replies: hostile.Reply, **keys: Any) -> str:
    """Of the fault that is all that comes of one completion."""
    (outcome,), _ = judged(*replies, **keys)
    assert isinstance(outcome, Fault)
    return outcome.reason


@pytest.fixture(autouse=True)
def _little_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "BACKOFF", lambda _: 0.01)


GOOD = of_texts(lambda text: {"score": float(text)})


async def test_a_request_is_as_the_contract_says_and_results_keep_their_order() -> None:
    sample = Sample(
        text="7",
        answer="seven",
        extras={"level": "3"},
        messages=(Message("system", "Be brief."), Message("user", "4+3?")),
        task="sums",
        prompt_id="p1",
        token_ids=(5, 6),
        finish_reason="length",
    )

    async with Server(GOOD) as server:
        spec = spec_of(server.url + "/", {"strict": True}, batch_size=2)
        async with judging(spec) as judge:
            found = await judge.judge(spec, [sample, *texts("1", "2", "3")])
    assert found == (Value(7.0), Value(1.0), Value(2.0), Value(3.0))
    first = next(r for r in server.posts if b"seven" in r.body)
    request = ScoreRequest.model_validate_json(first.body)
    assert first.path == "/v1/score" and request.options == {"strict": True}
    sent = request.samples[0]
    assert (sent.text, sent.answer, sent.extras) == ("7", "seven", {"level": "3"})
    assert [m.content for m in sent.messages] == ["Be brief.", "4+3?"]
    assert (sent.task, sent.prompt_id, sent.num_tokens) == ("sums", "p1", 2)
    assert sent.finish_reason == "length"


def test_the_conversation_of_an_episode_is_sent_and_read_again() -> None:
    call = ToolCall("add", '{"a": 4, "b": 3}', "c0")
    conversation = (
        Message("assistant", "", tool_calls=(call,), reasoning="Easy."),
        Message("tool", "7", call_id="c0", name="add"),
        Message("assistant", "7"),
    )
    episode = Sample("7", "7", finish_reason="turns", conversation=conversation)
    request = ScoreRequest.model_validate_json(score_request([episode, Sample("7", "7")], {}))
    first, second = map(sample_of, request.samples)
    assert (first.conversation, first.finish_reason) == (conversation, "turns")
    assert second.conversation == ()
    assert b"conversation" not in score_request([Sample("7", "7")], {})  # older plugins refuse it


def test_one_faulted_or_bad_item_is_the_fault_of_that_item_only() -> None:
    reply = results(
        {"score": 1, "parts": {"length": 3.5}, "new_field": []},
        {"faulted": "no\nreference"},
        {"score": "1.0"},
        {"score": 0.5, "faulted": "both"},
        {"score": None, "faulted": "null is absent"},
        7,
        {"score": 10**400},
        {"score": 0.0, "indigestible": "hung", "faulted": None},
    )
    found, _ = judged(reply, count=8)
    assert found[0] == Value(1.0, {"length": 3.5})
    assert found[7] == Indigestible("hung", 0.0)
    reasons = [outcome.reason for outcome in found[1:7] if isinstance(outcome, Fault)]
    wanted = ["it reports a fault: no reference", "score: ", "both score and faulted"]
    wanted += ["null is absent", "not an object", "score: "]
    assert len(reasons) == len(wanted)
    for text, want in zip(reasons, wanted, strict=True):
        assert want in text


def test_a_score_beyond_what_the_plugin_names_itself_is_a_fault() -> None:
    info = hostile.INFO | {"minimum": -1, "maximum": 1}
    found, _ = judged(
        results({"score": -1}, {"score": 1.5}, {"score": 1.5, "indigestible": "hung"}),
        info=info,
        count=3,
    )
    assert found[0] == Value(-1.0)
    for outcome in found[1:]:
        assert isinstance(outcome, Fault) and "1.5 is not within" in outcome.reason


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "not as its contract says"),
        (b"\xff\xfe\x00", "not as its contract says"),
        (b'{"contract":"trimaran.reward/2","results":[{"score":1}]}', "contract"),
        (b'{"contract":"trimaran.reward/1","results":{"score":1}}', "results"),
        (b'{"contract":"trimaran.reward/1","results":[]}', "has 0 results for 1 completions"),
    ],
    ids=["html", "binary", "version", "no-list", "wrong-length"],
)
def test_an_answer_that_is_none_says_why(body: bytes, says: str) -> None:
    found, server = judged(answer(200, body), attempts=3)
    assert isinstance(found[0], Fault) and says in found[0].reason
    assert len(server.posts) == 1  # asking again would not make it better


def test_a_gigabyte_is_not_read() -> None:
    tracemalloc.start()
    try:
        says = reason(hostile.flood(1 << 30, length_known=False))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "larger than" in says
    assert peak < 32 << 20


def test_a_compressed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(b"{}")
    assert "compressed (gzip)" in reason(answer(200, packed, Content_Encoding="gzip"))


@pytest.mark.parametrize("reply", [hostile.never, hostile.drip])
def test_the_deadline_holds(reply: hostile.Reply) -> None:
    assert "no answer within" in reason(reply, timeout=SHORT)


def test_waiting_for_a_place_counts_and_names_the_overload() -> None:
    found, server = judged(
        hostile.never,
        count=3,
        batch_size=1,
        max_concurrency=1,
        timeout=SHORT,
    )
    reasons = [outcome.reason for outcome in found if isinstance(outcome, Fault)]
    assert len(server.posts) == 1
    assert "no answer within" in reasons[0]
    assert all("overloaded: no place among its 1 calls" in text for text in reasons[1:])


@pytest.mark.parametrize(
    "bad",
    [
        hostile.reset,
        hostile.hang_up,
        answer(502, b""),
        answer(504, b""),
        answer(503, b'{"detail":"starting"}', Retry_After="0"),
        answer(429, b""),
    ],
    ids=["reset", "hang-up", "502", "504", "503", "429"],
)
def test_what_is_safe_to_retry_is_retried_with_the_same_key(bad: hostile.Reply) -> None:
    found, server = judged(bad, GOOD)
    assert found == (Value(0.0),)
    first, second = server.posts
    assert first.body == second.body and first.json["idempotency_key"]
    assert isinstance(judged(bad, attempts=1)[0][0], Fault)


def test_a_wait_beyond_the_deadline_is_not_begun() -> None:
    found, server = judged(answer(503, b"", Retry_After="3600"), GOOD)
    assert isinstance(found[0], Fault) and "asks to wait 3600 s" in found[0].reason
    assert len(server.posts) == 1


def test_equal_samples_get_equal_keys_and_others_do_not() -> None:
    async def run() -> list[str]:
        async with Server(GOOD) as server:
            spec, other = spec_of(server.url), spec_of(server.url, {"strict": True})
            for _ in range(2):  # two runs of the service
                async with judging(spec, other) as judge:
                    await judge.judge(spec, texts("1", "2"))
                    await judge.judge(spec, texts("2", "1"))
                    await judge.judge(other, texts("1", "2"))
            return [request.json["idempotency_key"] for request in server.posts]

    keys = asyncio.run(run())
    assert keys[:3] == keys[3:] and len(set(keys)) == 3


async def test_redirects_are_refused_and_connections_kept() -> None:
    moved = answer(307, b"", Location="/moved")
    async with Server(GOOD, GOOD, moved) as server:
        spec = spec_of(server.url)
        async with judging(spec) as judge:
            for _ in range(2):
                assert await judge.judge(spec, texts("1")) == (Value(1.0),)
            (outcome,) = await judge.judge(spec, texts("1"))
        assert isinstance(outcome, Fault)
        assert "redirects to /moved, which is not followed" in outcome.reason
        assert (server.connections, len(server.posts)) == (1, 3)


async def test_the_token_is_sent_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    token = "s3cret-t0ken"
    monkeypatch.setenv("TRIMARAN_TEST_TOKEN", token + "\n")

    caplog.set_level("DEBUG")
    echo = answer(401, json.dumps({"detail": f"Bearer {token} is wrong"}).encode())
    async with Server(echo) as server:
        spec = spec_of(server.url, token_variable="TRIMARAN_TEST_TOKEN")
        async with judging(spec) as judge:
            (outcome,) = await judge.judge(spec, texts("1"))
            server.reply(results({"faulted": f"heard {token}"}))
            (faulted,) = await judge.judge(spec, texts("1"))
            server.reply(results({"score": 0, "indigestible": f"heard {token}"}))
            (indigestible,) = await judge.judge(spec, texts("1"))
            server.reply(results({"score": 0, "parts": {token: 1}}))
            (value,) = await judge.judge(spec, texts("1"))
            server.reply(answer(400, json.dumps({"detail": "." * 290 + token}).encode()))
            (cut,) = await judge.judge(spec, texts("1"))
    assert indigestible == Indigestible("heard ***", 0.0)
    assert value == Value(0.0, {"***": 1.0})
    assert isinstance(cut, Fault) and cut.reason.endswith("..***")
    assert server.posts[0].headers["authorization"] == f"Bearer {token}"
    assert outcome == Fault(f"{server.url}: answers 401: Bearer *** is wrong")
    assert isinstance(faulted, Fault) and "heard ***" in faulted.reason
    assert token not in caplog.text


@pytest.mark.parametrize("value", [None, "two words"])
def test_a_token_that_is_missing_or_unusable_is_named(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRIMARAN_TEST_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("TRIMARAN_TEST_TOKEN", value)

    async def run() -> None:
        async with judging(spec_of("http://127.0.0.1:9", token_variable="TRIMARAN_TEST_TOKEN")):
            pass

    with pytest.raises(InputError, match="TRIMARAN_TEST_TOKEN"):
        asyncio.run(run())


async def test_a_plugin_that_is_not_up_at_start_is_asked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Server(GOOD) as first:
        port = first.port
    spec = spec_of(f"http://127.0.0.1:{port}")
    async with judging(spec) as judge:
        (outcome,) = await judge.judge(spec, texts("1"))
        assert isinstance(outcome, Fault) and "cannot be reached" in outcome.reason
        async with Server(GOOD, info=hostile.INFO | {"max_samples": 1}, port=port) as second:
            assert await judge.judge(spec, texts("1", "2")) == (Value(1.0), Value(2.0))
            assert len(second.posts) == 2
    assert "is asked again when there is something to score" in caplog.text


async def test_the_circuit_opens_and_one_probe_closes_it() -> None:
    async with Server(answer(500, b"broken")) as server:
        spec = spec_of(server.url)
        async with judging(spec) as judge:
            for _ in range(breaker.FAILURES):
                await judge.judge(spec, texts("1"))
            (outcome,) = await judge.judge(spec, texts("1"))
            assert isinstance(outcome, Fault)
            assert "failed 5 times in a row and is left alone for" in outcome.reason
            assert "last: answers 500: broken" in outcome.reason
            assert len(server.posts) == breaker.FAILURES
            server.reply(GOOD, info=hostile.INFO | {"max_samples": 1})
            judge._plugins[spec.plugin]._breaker._closed_until = 0.0  # the rest is over
            assert await judge.judge(spec, texts("1", "2")) == (Value(1.0), Value(2.0))
            # Who comes back may take less at a time.
            assert len(server.posts) == breaker.FAILURES + 2


async def test_our_own_server_and_client_understand_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRIMARAN_TEST_TOKEN", "right")

    async def judge_length(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(len(sample.text) / 10, {"words": 1.0}) for sample in samples]

    info = Info(contract=CONTRACT, name="length", minimum=0, maximum=1, max_samples=7)
    async with serving(make_app(judge_length, info, "right")) as url:
        trimaran = spec_of(url, token_variable="TRIMARAN_TEST_TOKEN")
        without = spec_of(url)
        async with judging(trimaran, without) as judge:
            samples = texts(*("x" * length for length in range(11))) * 2
            found = await judge.judge(trimaran, samples)
            assert [o.value for o in found if isinstance(o, Value)] == [
                length / 10 for length in range(11)
            ] * 2
            assert found[0] == Value(0.0, {"words": 1.0})
            (refused,) = await judge.judge(without, texts("x"))
            assert isinstance(refused, Fault) and "answers 401" in refused.reason
