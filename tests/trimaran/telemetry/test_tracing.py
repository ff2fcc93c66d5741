"""When traces are made; tests/observability has a real run and a real collector."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from trimaran.telemetry import scope, tracing
from trimaran.telemetry.tracing import ENDPOINTS, HEADERS

ENDPOINT = {ENDPOINTS[1]: "http://127.0.0.1:4317"}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(scope, "process", scope.Process("controller", "addition-1"))
    yield
    tracing.stop()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        ENDPOINT | {"OTEL_SDK_DISABLED": "true"},
        ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"},
        ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"},
    ],
)
def test_no_traces_unless_they_are_asked_for(environment: dict[str, str]) -> None:
    tracing.configure(environment)
    tracing.start()
    assert not tracing.is_on() and not scope.process.travels
    with tracing.in_group(17), tracing.span("generate"), tracing.step(1, [17]):
        assert tracing.headers() == ()
    with tracing.in_groups("train", [17]):
        tracing.annotate(replica="rollout-0")
    tracing.ended(17, 0.0, "committed")


def test_a_missing_package_is_named_and_harms_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "PACKAGES", ["opentelemetry_that.is_not_there"])
    tracing.configure(dict(ENDPOINT))
    tracing.start()
    assert not tracing.is_on()
    assert "pip install 'trimaran[traces]'" in caplog.text


def test_the_collectors_token_is_not_inherited() -> None:
    secrets: dict[str, str] = dict.fromkeys(HEADERS, "authorization=secret")
    for others in (ENDPOINT, dict[str, str]()):
        environment = others | secrets
        tracing.configure(environment)
        assert environment == others


needs_sdk = pytest.mark.skipif(
    not all(map(tracing._is_installed, tracing.PACKAGES)),
    reason="needs OpenTelemetry's SDK: pip install 'trimaran[traces]'",
)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """No collector listens there."""
    monkeypatch.setenv(ENDPOINTS[1], "http://127.0.0.1:9")
    return {ENDPOINTS[1]: "http://127.0.0.1:9"}


@needs_sdk
def test_a_collector_that_is_away_holds_nothing_up(nobody: dict[str, str]) -> None:
    tracing.configure(nobody)
    tracing.start()
    assert tracing.is_on() and scope.process.travels
    with tracing.in_group(17), tracing.span("generate"):
        [(name, value)] = tracing.headers()
        assert name == "traceparent" and value.startswith("00-")
    tracing.ended(17, 0.0, "committed")
    tracing.stop()
    assert not tracing.is_on()


@needs_sdk
def test_groups_have_traces_of_their_own_the_same_in_every_process() -> None:
    from trimaran.telemetry.otel import group_ids

    assert group_ids("a", 17) == group_ids("a", 17)
    ids = {group_ids(run, number) for run in ("a", "b") for number in range(1000)}
    assert len({trace for trace, _ in ids}) == len({span for _, span in ids}) == 2000


@needs_sdk
async def test_tasks_side_by_side_keep_their_groups_apart(nobody: dict[str, str]) -> None:
    from trimaran.telemetry.otel import group_ids

    tracing.configure(nobody)
    tracing.start()

    async def one(number: int) -> None:
        with tracing.in_group(number), tracing.span("generate"):
            await asyncio.sleep(0)
            [(_, value)] = tracing.headers()
            assert value.split("-")[1] == f"{group_ids('addition-1', number)[0]:032x}"

    await asyncio.gather(*map(one, range(10)))
    assert tracing.headers() == ()


@needs_sdk
def test_every_process_keeps_the_same_share_of_the_groups(
    nobody: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.1")

    def kept() -> set[int]:
        tracing.configure(nobody)
        tracing.start()
        found = set()
        for number in range(1000):
            with tracing.in_group(number):
                if tracing.headers():
                    found.add(number)
        tracing.stop()
        return found

    first = kept()
    assert 50 < len(first) < 150
    assert kept() == first
