"""The manager over HTTP, asked as people, pages and probes ask it."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from services.manager.http.app import make_app
from services.manager.http.safety import Safety
from services.manager.run_data.log_files import LogLines
from tests.clients.fake_runs import FakeRuns
from trimaran.errors import (
    ForbiddenError,
    InputError,
    LimitError,
    TrimaranError,
    UnauthenticatedError,
    UnavailableError,
)
from trimaran.run.network import listening_at
from trimaran.run.runs import EventKind, RunEvent, RunState
from trimaran.telemetry.exposition import CONTENT_TYPE, Exposition
from trimaran.wire.http_problems import problem_of
from trimaran.wire.http_server import serving_http

READERS = ("GetRun", "ListRuns", "WatchRun")


def identify(method: str, token: str) -> str:
    name = method.rpartition("/")[2]
    assert method == f"/trimaran.v1.RunService/{name}"
    if token not in ("reader", "writer"):
        raise UnauthenticatedError(f"{name}: there is no token; give Authorization: Bearer TOKEN")
    if token == "reader" and name not in READERS:
        raise ForbiddenError(f"{name}: a viewer may not; ask an operator")
    return token


def connect(runs: FakeRuns, token: str, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(runs, identify, Exposition(), **options)),
        base_url="http://127.0.0.1:7980",
        headers={"Authorization": f"Bearer {token}"} if token else {},
    )


@pytest.fixture
def runs() -> FakeRuns:
    """There is one run."""
    fake = FakeRuns()
    fake.add("run")
    return fake


@pytest.fixture
def client(runs: FakeRuns) -> httpx.AsyncClient:
    return connect(runs, "writer")


def problem(response: httpx.Response) -> tuple[int, str, str]:
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told["status"] == response.status_code and told["detail"]
    return told["status"], told["title"], told.get("field", "")


async def test_a_run_is_submitted_once_steered_and_deleted(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    submission = {"config": {"run": {"steps": 3}}, "priority": 2, "request_id": "mine"}
    answer = await client.post("/v1/runs", json=submission)
    assert answer.status_code == 201
    place = answer.headers["location"]
    again = await client.post("/v1/runs", json=submission)
    assert again.headers["location"] == place
    assert runs.calls[0] == ("create", "writer", "mine", (), 2)
    assert (await client.get(place)).json()["state"] == "queued"
    text = await client.post("/v1/runs", json={"config": "run: {steps: 3}\n"})
    assert text.status_code == 201

    assert (await client.post("/v1/runs/run/pause")).json()["state"] == "pausing"
    scale = {"min_replicas": 2, "max_replicas": 4}
    scaled = (await client.post("/v1/runs/run/scale", json=scale)).json()
    assert scaled["replicas"] == {"min": 2, "max": 4, "granted": 0}
    assert (await client.post("/v1/runs/run/cancel")).json()["state"] == "cancelling"
    assert problem(await client.delete("/v1/runs/run"))[:2] == (409, "FAILED_PRECONDITION")
    runs.finish("run", RunState.FAILED)
    assert (await client.post("/v1/runs/run/resume")).json()["state"] == "queued"
    runs.finish("run", RunState.FAILED)
    assert (await client.delete("/v1/runs/run")).status_code == 204
    assert problem(await client.get("/v1/runs/run")) == (404, "NOT_FOUND", "run_id")


async def test_runs_are_listed_by_page_state_and_owner(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    for number in range(3):
        runs.add(f"run-{number}", RunState.PAUSED, owner="ada")
    question = {"state": ["paused", "failed"], "owner": "ada", "page_size": 2}
    first = (await client.get("/v1/runs", params=question)).json()
    assert [run["run_id"] for run in first["runs"]] == ["run-2", "run-1"]
    question["page_token"] = first["next_page_token"]
    last = (await client.get("/v1/runs", params=question)).json()
    assert [run["run_id"] for run in last["runs"]] == ["run-0"]
    assert last["next_page_token"] == ""
    wrong = await client.get("/v1/runs", params={"state": "sleeping"})
    assert problem(wrong) == (422, "INVALID_ARGUMENT", "state.0")


async def test_what_a_run_has_made(client: httpx.AsyncClient, runs: FakeRuns) -> None:
    get = client.get
    assert (await get("/v1/runs/run/checkpoints")).json()[0]["step"] == 2
    samples = (await get("/v1/runs/run/samples?trained_step=2&limit=5")).json()
    assert runs.calls[-1] == ("samples", "writer", "run", None, 2, 5, 0)
    assert samples["samples"][1]["fault"] == "worker gone"
    names = (await get("/v1/runs/run/logs")).json()["processes"]
    assert names == ["controller", "rollout-0"]
    log = await get("/v1/runs/run/logs/rollout-0?lines=2")
    assert log.text == "line 0 of rollout-0\nline 1 of rollout-0\n"
    assert problem(await get("/v1/runs/run/logs/nobody")) == (404, "NOT_FOUND", "process")
    assert (await get("/v1/runs/run/ledger")).json()["sound"] is False
    assert (await get("/v1/runs/run/ledger/groups/17")).json()["facts"] == {"group": 17}


async def test_configuration_and_metrics_are_json(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    config = (await client.get("/v1/runs/run/config")).json()
    assert config["run"] == {"steps": 4}
    runs.step("run", 1, 0.25)
    runs.step("run", 2, math.nan)
    runs.step("run", 2, 0.5)  # again, after a resume
    table = (await client.get("/v1/runs/run/metrics")).json()
    rows = [(row["kind"], row["step"], row["reward/completion/mean"]) for row in table["rows"]]
    assert rows == [("step", 1, 0.25), ("step", 2, 0.5)] and table["missed"] == ""
    runs.tell("run", EventKind.MISSED, text="events up to 3 are not kept any more")
    runs.step("run", 3, math.nan)
    table = (await client.get("/v1/runs/run/metrics")).json()
    assert table["rows"][-1]["reward/completion/mean"] is None
    assert table["missed"] == "events up to 3 are not kept any more"
    assert problem(await client.get("/v1/runs/no/config"))[:2] == (404, "NOT_FOUND")
    assert problem(await client.get("/v1/runs/no/metrics"))[:2] == (404, "NOT_FOUND")


async def test_tokens_and_roles_are_those_of_grpc(runs: FakeRuns) -> None:
    reader, stranger = connect(runs, "reader"), connect(runs, "")
    for path in ("/v1/runs/run", "/v1/runs/run/config", "/v1/runs/run/metrics", "/metrics/targets"):
        assert (await reader.get(path)).status_code == 200
    for refused in (await reader.post("/v1/runs/run/pause"), await reader.get("/metrics")):
        assert problem(refused)[:2] == (403, "PERMISSION_DENIED")
    answer = await stranger.get("/v1/runs")
    assert problem(answer)[:2] == (401, "UNAUTHENTICATED")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert (await stranger.get("/healthz")).status_code == 200
    assert (await stranger.get("/readyz")).status_code == 200


async def test_probes_tell_life_from_readiness(runs: FakeRuns) -> None:
    client = connect(runs, "", is_ready=lambda: False)
    assert (await client.get("/healthz")).status_code == 200
    assert problem(await client.get("/readyz"))[:2] == (503, "UNAVAILABLE")


async def test_prometheus_finds_every_process_and_its_numbers(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.add("ended", RunState.SUCCEEDED)
    runs.add("run", owner="ada")
    runs.add("young", RunState.STARTING)
    targets = (await client.get("/metrics/targets")).json()
    assert targets == [
        {
            "targets": ["127.0.0.1:7980"],
            "labels": {
                "__metrics_path__": f"/metrics/runs/run/{process}",
                "run": "run",
                "process": process,
                "owner": "ada",
                "kind": kind,
                "index": "0",
            },
        }
        for process, kind in (("controller", "controller"), ("rollout-0", "rollout"))
    ]
    told = await client.get(targets[1]["labels"]["__metrics_path__"])
    assert (told.text, told.headers["content-type"]) == ("up 1\n", CONTENT_TYPE)
    lost = await client.get(targets[0]["labels"]["__metrics_path__"])
    assert problem(lost)[:2] == (503, "UNAVAILABLE")
    assert problem(await client.get("/metrics/runs/run/x")) == (404, "NOT_FOUND", "process")
    own = await client.get("/metrics")
    assert "process_resident_memory_bytes" in own.text


async def test_no_web_page_steers_a_manager(client: httpx.AsyncClient) -> None:
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        answer = await client.post("/v1/runs/run/pause", headers=headers)
        assert problem(answer)[:2] == (403, "PERMISSION_DENIED")
    own = {"Origin": "http://127.0.0.1:7980"}
    assert (await client.post("/v1/runs/run/pause", headers=own)).status_code == 200


async def test_a_body_that_does_not_arrive_is_not_waited_for() -> None:
    """Nobody knows yet who sends it."""
    parts: list[dict[str, Any]] = [{"type": "http.request", "body": b"{", "more_body": True}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(*_: Any) -> None:
        raise AssertionError("half a body was handed on")

    scope = {"type": "http", "method": "POST", "path": "/v1/runs", "headers": []}
    safety = Safety(app, frozenset(), body_seconds=0.01)
    await safety(scope, receive, send)
    assert sent[0]["status"] == 408 and b"within 0.01 s; send it again" in sent[1]["body"]


async def test_a_body_that_is_too_long_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/runs", content=b" " * (5 << 20))
    assert problem(answer)[:2] == (413, "RESOURCE_EXHAUSTED")


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (LimitError("rollout.max_replicas x rollout.kv (GiB): 9 is more"), "rollout.max_replicas"),
        (LimitError("owner ann has 4 runs that have not ended; at most 4: wait"), ""),
        (ForbiddenError("data.train: /x: is not below a root"), "data.train"),
        (InputError("config: run.stepss: unknown key"), "run.stepss"),
        (InputError("config: not YAML: line 1: column 2"), "config"),
        (InputError("overrides[0]: 'a': an override reads key.sub=value"), "overrides[0]"),
    ],
)
def test_the_field_is_the_one_that_the_message_begins_with(
    error: TrimaranError, field: str
) -> None:
    assert problem_of(error).field == field


def parse(text: str) -> list[dict[str, Any]]:
    """As a browser does."""
    events = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[0] != ":")
        if fields:
            events.append({**fields, "data": json.loads(fields["data"])})
    return events


async def test_events_go_on_behind_the_last_one_seen_and_end_with_the_run(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.step("run", 1, math.nan)
    place = "/v1/runs/run/events"
    so_far = parse((await client.get(place, params={"until_now": True})).text)
    assert [(each["id"], each["event"]) for each in so_far] == [("1", "state"), ("2", "step")]
    assert so_far[1]["data"]["values"] == {"reward/completion/mean": None}
    runs.finish("run")
    whole = await client.get(place)
    assert whole.headers["content-type"].startswith("text/event-stream")
    assert [each["id"] for each in parse(whole.text)] == ["1", "2", "3"]
    rest = await client.get(place + "?after=1", headers={"Last-Event-ID": "2"})
    assert [each["data"]["kind"] for each in parse(rest.text)] == ["finished"]
    nothing = await client.get(place, headers={"Last-Event-ID": "3"})
    assert nothing.status_code == 204
    assert problem(await client.get("/v1/runs/no/events"))[0] == 404
    wrong = await client.get(place, headers={"Last-Event-ID": "-1"})
    assert problem(wrong) == (422, "INVALID_ARGUMENT", "last-event-id")


@asynccontextmanager
async def served(
    runs: FakeRuns, identify: Any = lambda method, token: None, **options: Any
) -> AsyncGenerator[str]:
    """On a socket: httpx' transport without one waits for the end of an answer."""
    listener, address = listening_at("127.0.0.1:0", "address")
    async with serving_http(make_app(runs, identify, Exposition(), **options), listener, None):
        yield f"http://{address}"


async def test_events_arrive_as_they_happen_and_a_silent_run_gives_signs_of_life(
    runs: FakeRuns,
) -> None:
    seen: list[str] = []
    async with (
        served(runs, heartbeat_seconds=0.05) as place,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{place}/v1/runs/run/events") as answer,
    ):
        async for line in answer.aiter_lines():
            seen.append(line)
            if line == "id: 1":
                runs.step("run", 1, 0.5)
            elif line[:1] == ":" and seen.count(line) == 3:
                runs.finish("run")
    assert [line for line in seen if line.startswith("id")] == ["id: 1", "id: 2", "id: 3"]
    assert seen.count(": nothing new") >= 3


@pytest.mark.parametrize("path", ["events", "logs/launcher?follow=true"])
async def test_a_token_that_is_withdrawn_ends_a_silent_stream(path: str) -> None:
    class Following(FakeRuns):
        async def logs(self, *arguments: Any, **options: Any) -> AsyncIterator[LogLines]:
            yield LogLines(["one"], 4)
            await asyncio.Event().wait()

    known = {"a"}

    def identify(method: str, token: str) -> None:
        if token not in known:
            raise UnauthenticatedError(f"{method}: nobody here has this token")

    runs = Following()
    runs.add("run")
    seen = ""
    async with (
        served(runs, identify, heartbeat_seconds=30.0, identify_seconds=0.05) as place,
        httpx.AsyncClient(headers={"Authorization": "Bearer a"}) as client,
        client.stream("GET", f"{place}/v1/runs/run/{path}") as answer,
    ):
        async for line in answer.aiter_lines():
            known.clear()
            seen += f"{line}\n"
    assert "nobody here has this token" in seen


async def test_a_watcher_that_goes_away_is_let_go() -> None:
    ended = asyncio.Event()

    class Watched(FakeRuns):
        async def events(self, *arguments: Any, **options: Any) -> AsyncIterator[RunEvent]:
            try:
                async for event in super().events(*arguments, **options):
                    yield event
            finally:
                ended.set()

    runs = Watched()
    runs.add("run")
    async with served(runs) as place, httpx.AsyncClient() as client:
        async with client.stream("GET", f"{place}/v1/runs/run/events") as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id"):
                    break
        await ended.wait()


async def test_an_error_on_the_way_is_told_as_an_event() -> None:
    class Breaking(FakeRuns):
        async def events(self, *arguments: Any, **options: Any) -> AsyncIterator[RunEvent]:
            yield self.reported["run"][0]
            raise UnavailableError("the store does not answer")

    runs = Breaking()
    runs.add("run")
    events = parse((await connect(runs, "reader").get("/v1/runs/run/events")).text)
    assert [event["event"] for event in events] == ["state", "problem"]
    assert events[1]["data"]["title"] == "UNAVAILABLE"
