"""What the work at hand is about: in log lines, and across calls."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trimaran.wire.fakes import run_service, serving
from trimaran.errors import InputError
from trimaran.telemetry import scope
from trimaran.telemetry.run_files import LIVES, LOG_VARIABLE, JsonFormatter, setup_logging
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire import rpc

KEYS = st.sampled_from(scope.KEYS)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setattr(scope, "process", scope.Process("controller", "addition-1", True))
    yield


@given(st.dictionaries(KEYS, st.integers(0, 2**63 - 1)))
def test_what_is_sent_is_what_is_read(facts: dict[str, int]) -> None:
    with scope.about(**facts):
        assert scope.read(scope.headers()) == facts
    assert scope.facts() == {}


@given(st.text())
def test_whatever_a_stranger_sends_is_numbers_or_nothing(text: str) -> None:
    read = scope.read([(scope.HEADER, text)])
    assert all(key in scope.KEYS and isinstance(value, int) for key, value in read.items())


def test_others_baggage_is_left_alone() -> None:
    reported = "userId=alice, trimaran.group=17,trimaran.step=x,trimaran.attempt=2;p=1"
    assert scope.read([("traceparent", "00-1"), (scope.HEADER, reported)]) == {"group": 17}
    assert scope.read(None) == {}


def test_nothing_is_sent_while_nothing_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scope.process, "travels", False)
    with scope.about(group=17):
        assert scope.headers() == ()


async def test_tasks_and_threads_know_what_they_are_about() -> None:
    async def look() -> Any:
        return scope.facts().get("group")

    async def one(number: int) -> None:
        with scope.about(group=number):
            assert await asyncio.create_task(look()) == number
            assert await asyncio.to_thread(lambda: scope.facts()["group"]) == number

    await asyncio.gather(*map(one, range(10)))


class Echo(run_pb2_grpc.RunServiceServicer):
    async def GetRun(self, request: run_pb2.GetRunRequest, context: Any) -> run_pb2.GetRunResponse:
        logging.getLogger("services.test").warning("from the handler")
        if request.run_id == "wrong":
            raise InputError("wrong")
        return run_pb2.GetRunResponse()


async def test_a_handler_is_about_what_its_caller_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    caplog.set_level(logging.INFO)
    async with serving(run_service(Echo())) as address, rpc.connect(address) as channel:
        stub: Any = run_pb2_grpc.RunServiceStub(channel)
        with scope.about(group=17, step=3):
            await rpc.call(stub.GetRun, run_pb2.GetRunRequest(), 10)
        with scope.about(group=18), pytest.raises(InputError):
            await rpc.call(stub.GetRun, run_pb2.GetRunRequest(run_id="wrong"), 10)
        await rpc.call(stub.GetRun, run_pb2.GetRunRequest(), 10)
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    reported = [(line["message"].split(" after")[0], line.get("group")) for line in lines]
    assert reported == [
        *(("from the handler", 17), ("RunService/GetRun: OK", 17)),
        *(("from the handler", 18), ("RunService/GetRun: INVALID_ARGUMENT", 18)),
        ("from the handler", None),  # which is about nothing, and has no line of its own
    ]
    assert (lines[0]["run"], lines[0]["step"], lines[0]["level"]) == ("addition-1", 3, "WARNING")


@pytest.fixture
def written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """The lines of a process in a format."""

    def write(form: str) -> list[str]:
        monkeypatch.setenv(LOG_VARIABLE, form)
        setup_logging("rollout-0", "addition-1")
        logger = logging.getLogger("services.rollout")
        with scope.about(group=17):
            logger.warning("two\nlines and a %s", "word")
            logging.getLogger(LIVES).info("issued")
            logging.getLogger("library").info("chatter")
            try:
                _ = 1 / 0
            except ZeroDivisionError:
                logger.exception("failed")
        return capsys.readouterr().err.splitlines()

    return write


def test_json_lines_say_where_they_come_from(written: Callable[[str], list[str]]) -> None:
    warned, issued, failed = map(json.loads, written("json"))
    assert warned["message"] == "two\nlines and a word"
    for line in (warned, issued, failed):
        assert (line["process"], line["run"], line["group"]) == ("rollout-0", "addition-1", 17)
        assert line["time"].endswith("Z") and len(line["time"]) == 24
    assert (issued["message"], issued["level"]) == ("issued", "INFO")
    assert "ZeroDivisionError" in failed["exception"]


@pytest.mark.parametrize("form", ["", "text"])
def test_a_line_of_text_names_its_process(written: Callable[[str], list[str]], form: str) -> None:
    lines = written(form)
    assert lines[0].endswith(" rollout-0 WARNING services.rollout: two")
    assert not [line for line in lines if "issued" in line or "chatter" in line]


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_VARIABLE, "xml")
    with pytest.raises(InputError, match="TRIMARAN_LOG: 'xml' is no format; there are text and"):
        setup_logging("controller")
