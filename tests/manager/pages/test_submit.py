"""The form that submits a run."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
import yaml

from tests.clients.fake_runs import FakeRuns
from trimaran.errors import AlreadyExistsError, StateError
from trimaran.run.runs import RunState


async def fill(client: httpx.AsyncClient, address: str = "/runs/new") -> dict[str, str]:
    """The form as it stands there, with a small configuration."""
    text = (await client.get(address)).text
    (request_id,) = re.findall(r'name="request_id" value="(\w+)"', text)
    return {"request_id": request_id, "config": "run: {steps: 4}", "priority": "0"}


async def test_a_double_click_is_one_run_and_the_next_form_another(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    form = await fill(client) | {"overrides": " run.seed=2 \n\nrun.steps=9", "priority": "3"}
    answers = [await client.post("/runs/new", data=form) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert {answer.headers["location"] for answer in answers} == {"/runs/run-2"}
    assert runs.calls[0][3:] == (("run.seed=2", "run.steps=9"), 3)
    again = await client.post("/runs/new", data=await fill(client))
    assert again.headers["location"] == "/runs/run-3"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"config": "[</textarea>"}, "config: not YAML"),
        ({"priority": "soon"}, "priority: &#39;soon&#39; is not a whole number"),
    ],
)
async def test_what_is_wrong_stands_beside_all_that_was_typed(
    wrong: dict[str, str], words: str, client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    form = await fill(client) | {"overrides": "a.b=<c>", "priority": "7"} | wrong
    answer = await client.post("/runs/new", data=form)
    assert answer.status_code == 422 and words in answer.text
    for typed in ("a.b=&lt;c&gt;", form["request_id"], f'value="{form["priority"]}"'):
        assert typed in answer.text
    assert (form["config"] in answer.text) is ("<" not in form["config"])
    assert list(runs.runs) == ["run"]


async def test_a_check_queues_nothing(client: httpx.AsyncClient, runs: FakeRuns) -> None:
    form = await fill(client) | {"only_check": "true"}
    assert "Nothing speaks against" in (await client.post("/runs/new", data=form)).text
    form["config"] = "- a list"
    assert "must hold sections" in (await client.post("/runs/new", data=form)).text
    assert list(runs.runs) == ["run"]


async def test_a_copy_holds_what_differs_from_the_defaults(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.add("old", RunState.FAILED, priority=5)
    text = (await client.get("/runs/new?copy=old")).text
    (config,) = re.findall(r'<textarea id="config"[^>]*>\n(.*?)</textarea>', text, re.DOTALL)
    whole = await runs.config(None, "old")
    assert set(yaml.safe_load(config)) <= set(whole) and "run" in config
    assert 'value="5"' in text
    assert (await client.get("/runs/new?copy=other")).status_code == 404


async def test_a_form_that_was_gone_back_to_and_changed_is_another_request(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    error: Exception = AlreadyExistsError("request_id: that is another run's")

    async def refuse(*_: Any) -> None:
        raise error

    runs.create = refuse  # type: ignore[method-assign]
    form = await fill(client)
    taken = await client.post("/runs/new", data=form)
    assert taken.status_code == 409 and form["request_id"] not in taken.text
    error = StateError("the store is away")  # the run may have been queued all the same
    assert form["request_id"] in (await client.post("/runs/new", data=form)).text


@pytest.mark.parametrize(("token", "is_read_only"), [("viewer", False), ("operator", True)])
async def test_who_may_not_submit_sees_no_form(
    token: str, is_read_only: bool, client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    assert (await client.get("/runs/new")).status_code == 403
    form = {"config": "run: {}", "request_id": "a"}
    assert (await client.post("/runs/new", data=form)).status_code == 403
    assert runs.calls == []
