"""What the work at hand is about: in log lines, and across calls."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.errors import InputError
from trimaran.telemetry import scope
from trimaran.telemetry.run_files import LOG_VARIABLE, JsonFormatter, setup_logging
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
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    server = rpc.Server("127.0.0.1:0", [rpc.service(run_pb2.DESCRIPTOR, add, Echo())])
    await server.start()
    async with rpc.connect(server.address) as channel:
        stub: Any = run_pb2_grpc.RunServiceStub(channel)
        with scope.about(group=17, step=3):
            await rpc.call(stub.GetRun, run_pb2.GetRunRequest(), 10)
        with scope.about(group=18), pytest.raises(InputError):
            await rpc.call(stub.GetRun, run_pb2.GetRunRequest(run_id="wrong"), 10)
        await rpc.call(stub.GetRun, run_pb2.GetRunRequest(), 10)
    await server.stop()
    lines = [json.loads(line) for line in caplog.text.splitlines()]
    reported = [(line["message"].split(" after")[0], line.get("group")) for line in lines]
    assert reported == [
        *(("from the handler", 17), ("RunService/GetRun: OK", 17)),
        *(("from the handler", 18), ("RunService/GetRun: INVALID_ARGUMENT", 18)),
        ("from the handler", None),  # which is about nothing, and has no line of its own
    ]
    assert (lines[0]["run"], lines[0]["step"], lines[0]["level"]) == ("addition-1", 3, "WARNING")


LINES = """
import logging
from trimaran.telemetry import scope
from trimaran.telemetry.run_files import setup_logging
setup_logging("rollout-0", "addition-1")
with scope.about(group=17):
    logging.getLogger("services.rollout").warning("two\\nlines and a %s", "word")
    logging.getLogger("trimaran.lives").info("issued")
    try:
        1 / 0
    except ZeroDivisionError:
        logging.getLogger("services.rollout").exception("failed")
"""


def written(form: str) -> str:
    environment = {LOG_VARIABLE: form, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", LINES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_json_lines_say_where_they_come_from() -> None:
    warned, issued, failed = map(json.loads, written("json").splitlines())
    assert warned["message"] == "two\nlines and a word"
    for line in (warned, issued, failed):
        assert (line["process"], line["run"], line["group"]) == ("rollout-0", "addition-1", 17)
        assert line["time"].endswith("Z") and len(line["time"]) == 24
    assert (issued["message"], issued["level"]) == ("issued", "INFO")
    assert "ZeroDivisionError" in failed["exception"]


def test_text_stays_as_it_was() -> None:
    first = written("").splitlines()[0]
    assert first.endswith(" rollout-0 WARNING services.rollout: two")
    assert "issued" not in written("text")


def test_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOG_VARIABLE, "xml")
    with pytest.raises(InputError, match="TRIMARAN_LOG: 'xml' is no format; there are text and"):
        setup_logging("controller")
