"""The client against real servers that do what they should not."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.reward.outcome import Fault, Indigestible, Outcome, Value
from services.reward.plugins.calling import breaker
from services.reward.plugins.calling.client import PluginJudge
from services.reward.plugins.contract import CONTRACT, Info, ScoreRequest
from services.reward.plugins.serving.app import make_app
from services.reward.plugins.serving.app_forms import sample_of
from services.reward.terms import PluginSpec
from tests.certificates import Authority
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
async def judging(*specs: PluginSpec) -> AsyncIterator[PluginJudge]:
    allowed = Allowed.from_entries(map(host_of, specs))
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
    conversation = (
        Message("assistant", "", tool_calls=(ToolCall("add", "{}", "c0"),), reasoning="Easy."),
        Message("tool", "7", call_id="c0", name="add"),
        Message("assistant", "7"),
    )
    sample = Sample(
        text="7",
        answer="seven",
        extras={"level": "3"},
        messages=(Message("system", "Be brief."), Message("user", "4+3?")),
        task="sums",
        prompt_id="p1",
        token_ids=(0, 0),
        finish_reason="turns",
        conversation=conversation,
    )
    async with Server(GOOD) as server:
        spec = spec_of(server.url + "/", {"strict": True}, batch_size=2)
        async with judging(spec) as judge:
            found = await judge.judge(spec, [sample, *texts("1", "2", "3")])
    assert found == (Value(7.0), Value(1.0), Value(2.0), Value(3.0))
    first, second = sorted(server.posts, key=lambda post: b"seven" not in post.body)
    request = ScoreRequest.model_validate_json(first.body)
    assert first.path == "/v1/score" and request.options == {"strict": True}
    assert sample_of(request.samples[0]) == sample
    assert b"conversation" not in second.body, "older plugins refuse it"


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
    wanted = ["it reports a fault: no reference", "score: ", "both score and faulted"]
    wanted += ["null is absent", "not an object", "score: "]
    for outcome, want in zip(found[1:7], wanted, strict=True):
        assert isinstance(outcome, Fault) and want in outcome.reason


def test_a_score_beyond_what_the_plugin_names_itself_is_a_fault() -> None:
    info = hostile.INFO | {"minimum": -1, "maximum": 1}
    reply = results({"score": -1}, {"score": 1.5}, {"score": 1.5, "indigestible": "hung"})
    found, _ = judged(reply, info=info, count=3)
    assert found[0] == Value(-1.0)
    for outcome in found[1:]:
        assert isinstance(outcome, Fault) and "1.5 is not within" in outcome.reason


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"<html>", "not as its contract says"),
        (b'{"contract":"trimaran.reward/2","results":[{"score":1}]}', "contract"),
        (b'{"contract":"trimaran.reward/1","results":{"score":1}}', "results"),
        (b'{"contract":"trimaran.reward/1","results":[]}', "has 0 results for 1 completions"),
    ],
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
    keys: dict[str, Any] = {"batch_size": 1, "max_concurrency": 1, "timeout": SHORT}
    found, server = judged(hostile.never, count=3, **keys)
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
        answer(503, b'{"detail":"starting"}', Retry_After="0"),
        answer(429, b""),
    ],
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


async def test_equal_samples_get_equal_keys_and_others_do_not() -> None:
    async with Server(GOOD) as server:
        spec, other = spec_of(server.url), spec_of(server.url, {"strict": True})
        for _ in range(2):  # two runs of the service
            async with judging(spec, other) as judge:
                await judge.judge(spec, texts("1", "2"))
                await judge.judge(spec, texts("2", "1"))
                await judge.judge(other, texts("1", "2"))
    keys = [request.json["idempotency_key"] for request in server.posts]
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
    replies = (
        answer(401, json.dumps({"detail": f"Bearer {token} is wrong"}).encode()),
        answer(400, json.dumps({"detail": "." * 290 + token}).encode()),
        results({"faulted": f"heard {token}"}),
        results({"score": 0, "indigestible": f"heard {token}"}),
        results({"score": 0, "parts": {token: 1}}),
    )
    async with Server(*replies) as server:
        spec = spec_of(server.url, token_variable="TRIMARAN_TEST_TOKEN")
        async with judging(spec) as judge:
            refused, cut, faulted, *others = [
                (await judge.judge(spec, texts("1")))[0] for _ in replies
            ]
    assert server.posts[0].headers["authorization"] == f"Bearer {token}"
    assert refused == Fault(f"{server.url}: answers 401: Bearer *** is wrong")
    assert isinstance(cut, Fault) and cut.reason.endswith("..***")
    assert isinstance(faulted, Fault) and "heard ***" in faulted.reason
    assert others == [Indigestible("heard ***", 0.0), Value(0.0, {"***": 1.0})]
    assert token not in caplog.text


@pytest.mark.parametrize("value", [None, "two words"])
async def test_a_token_that_is_missing_or_unusable_is_named(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value:
        monkeypatch.setenv("TRIMARAN_TEST_TOKEN", value)
    with pytest.raises(InputError, match="TRIMARAN_TEST_TOKEN"):
        async with judging(spec_of("http://127.0.0.1:9", token_variable="TRIMARAN_TEST_TOKEN")):
            pass


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


async def test_our_own_server_and_client_understand_each_other() -> None:
    async def judge_length(samples: Sequence[Sample]) -> list[Outcome]:
        return [Value(len(sample.text) / 10, {"words": 1.0}) for sample in samples]

    info = Info(contract=CONTRACT, name="length", minimum=0, maximum=1, max_samples=7)
    async with serving(make_app(judge_length, info, None)) as url:
        spec = spec_of(url)
        async with judging(spec) as judge:
            found = await judge.judge(spec, texts(*("x" * length for length in range(11))))
    assert found == tuple(Value(length / 10, {"words": 1.0}) for length in range(11))


async def test_certificates_of_ca_file_are_trusted_and_others_are_not(tmp_path: Path) -> None:
    own, context = Authority("own").write(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    assert own.certificate
    context.load_cert_chain(own.certificate, own.key)
    async with Server(GOOD, tls=context) as server:
        trusted, plain = spec_of(server.url, ca_file=own.authorities), spec_of(server.url)
        async with judging(trusted, plain) as judge:
            assert await judge.judge(trusted, texts("1")) == (Value(1.0),)
            (outcome,) = await judge.judge(plain, texts("1"))
            assert isinstance(outcome, Fault) and "TLS fails" in outcome.reason
            assert len(server.posts) == 1


async def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(InputError, match=r"ca_file .*ca\.pem cannot be used"):
        async with judging(spec_of("https://127.0.0.1:9", ca_file=file)):
            pass
