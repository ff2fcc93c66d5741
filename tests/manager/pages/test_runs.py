"""The table of runs, the form that submits one, and the buttons of each."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from httpx import AsyncClient as Client

from services.manager.pages.runs.actions import RunAction, actions
from services.manager.pages.runs.query import COLUMNS, TableQuery
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL
from trimaran.errors import AlreadyExistsError, StateError
from trimaran.run.runs import TRANSITIONS, Replicas, Run, RunState

RUNS = (
    Run("a", RunState.QUEUED, 0, 10, owner="ada", created_at=3.0, priority=2),
    Run("b", RunState.RUNNING, 5, 10, owner="bo", created_at=2.0, reward=0.5, ends_at=9.0),
    Run("C-late", RunState.FAILED, 9, 100, created_at=1.0, reward=0.7, devices=4, held_out=0.1),
)


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({}, "a b C-late"),
        ({"sort": "-age"}, "C-late b a"),
        ({"sort": "reward"}, "b C-late a"),
        ({"sort": "-reward"}, "C-late b a"),  # what has none stands last in either order
        ({"sort": "step"}, "a C-late b"),
        ({"sort": "end"}, "b a C-late"),
        ({"state": "unended"}, "a b"),
        ({"state": "failed"}, "C-late"),
        ({"owner": "bo"}, "b"),
        ({"text": " LATE"}, "C-late"),
    ],
)
def test_the_address_says_which_runs_are_shown_and_in_which_order(
    asked: dict[str, str], shown: str
) -> None:
    query = TableQuery.model_validate(asked)
    assert " ".join(run.run_id for run in query.choose(RUNS)) == shown


def test_every_column_sorts_both_ways() -> None:
    for name in COLUMNS:
        query = TableQuery().by(name)
        assert query.by(name).order(name) != query.order(name) != ""
        assert {run.run_id for run in query.by(name).choose(RUNS)} == {"a", "b", "C-late"}


async def test_a_part_is_the_table_of_the_same_address_and_more_adds_rows(
    client: Client, runs: FakeRuns
) -> None:
    for number in range(250):
        runs.add(f"run-{number}", owner="o&o", created_at=float(number))
    address = "/runs?owner=o%26o&sort=step"
    part = await client.get(f"{address}&text=&state=", headers=PARTIAL)
    assert part.headers["hx-replace-url"] == address
    assert "<html" not in part.text and part.text.count('<tr id="run-') == 200
    assert "200 of 250 runs" in part.text
    (more,) = re.findall(r'id="more" href="([^"]+)"', part.text)
    whole = await client.get(more.replace("&amp;", "&"))
    assert "<html" in whole.text and whole.text.count('<tr id="run-') == 250
    assert 'aria-sort="ascending"><a id="by-step"' in whole.text


async def test_an_address_that_says_nothing_sensible_is_answered_with_its_fault(
    client: Client,
) -> None:
    answer = await client.get("/runs?sort=colour")
    assert answer.status_code == 422 and "sort" in answer.text


async def fill(client: Client, address: str = "/runs/new") -> dict[str, str]:
    """The form as it stands there, with a small configuration."""
    text = (await client.get(address)).text
    (request_id,) = re.findall(r'name="request_id" value="(\w+)"', text)
    return {"request_id": request_id, "config": "run: {steps: 4}", "priority": "0"}


async def test_a_double_click_is_one_run_and_the_next_form_another(
    client: Client, runs: FakeRuns
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
    wrong: dict[str, str], words: str, client: Client, runs: FakeRuns
) -> None:
    form = await fill(client) | {"overrides": "a.b=<c>", "priority": "7"} | wrong
    answer = await client.post("/runs/new", data=form)
    assert answer.status_code == 422 and words in answer.text
    for typed in ("a.b=&lt;c&gt;", form["request_id"], f'value="{form["priority"]}"'):
        assert typed in answer.text
    assert (form["config"] in answer.text) is ("<" not in form["config"])
    assert list(runs.runs) == ["run"]


async def test_a_check_queues_nothing(client: Client, runs: FakeRuns) -> None:
    form = await fill(client) | {"only_check": "true"}
    assert "Nothing speaks against" in (await client.post("/runs/new", data=form)).text
    form["config"] = "- a list"
    assert "must hold sections" in (await client.post("/runs/new", data=form)).text
    assert list(runs.runs) == ["run"]


async def test_a_copy_holds_what_differs_from_the_defaults(client: Client, runs: FakeRuns) -> None:
    runs.add("old", RunState.FAILED, priority=5)
    text = (await client.get("/runs/new?copy=old")).text
    (config,) = re.findall(r'<textarea id="config"[^>]*>\n(.*?)</textarea>', text, re.DOTALL)
    whole = await runs.config(None, "old")
    assert set(yaml.safe_load(config)) <= set(whole) and "run" in config
    assert 'value="5"' in text
    assert (await client.get("/runs/new?copy=other")).status_code == 404


async def test_a_form_that_was_gone_back_to_and_changed_is_another_request(
    client: Client, runs: FakeRuns
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
async def test_who_may_not_submit_sees_no_form(client: Client, runs: FakeRuns) -> None:
    assert (await client.get("/runs/new")).status_code == 403
    form = {"config": "run: {}", "request_id": "a"}
    assert (await client.post("/runs/new", data=form)).status_code == 403
    assert runs.calls == []


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.UNKNOWN])
async def test_each_button_of_a_state_asks_first_and_then_does_it(
    state: RunState, client: Client, runs: FakeRuns
) -> None:
    for action in actions(state):
        runs.add("run", state, replicas=Replicas(1, 2))
        assert f'id="{action}"' in (await client.get("/runs/run/head")).text
        question = await client.get(f"/runs/run/steer/{action}")
        assert question.text.startswith(f'<h2 id="asked">{action.capitalize()} run?')
        assert runs.runs["run"].state is state
        form = {"min_replicas": "2", "max_replicas": "3"}
        done = await client.post(f"/runs/run/steer/{action}", data=form)
        assert done.status_code == 200, done.text
        if action is RunAction.DELETE:
            assert done.headers["hx-redirect"] == "/runs" and "run" not in runs.runs
        elif action is RunAction.SCALE:
            assert runs.runs["run"].replicas == Replicas(2, 3)
        else:
            assert runs.runs["run"].state in TRANSITIONS[state]
            assert done.text.startswith("<h1>run ")


async def test_what_cannot_be_done_stays_a_question_that_says_why(client: Client) -> None:
    form = {"min_replicas": "5", "max_replicas": "4"}
    answer = await client.post("/runs/run/steer/scale", data=form)
    assert answer.status_code == 422 and answer.headers["hx-retarget"] == "#dialog"
    assert "min_replicas: 5" in answer.text and 'value="5"' in answer.text
    late = await client.post("/runs/run/steer/delete")
    assert late.status_code == 409 and "cancel it first" in late.text


@pytest.mark.parametrize("token", ["viewer"])
async def test_a_viewer_has_no_buttons_and_may_not_press_them(
    client: Client, runs: FakeRuns
) -> None:
    page = (await client.get("/runs/run")).text
    assert "steer" not in page and "/runs/new" not in page
    for action in RunAction:
        assert (await client.get(f"/runs/run/steer/{action}")).status_code == 403
        assert (await client.post(f"/runs/run/steer/{action}")).status_code == 403
    assert {call[0] for call in runs.calls} <= {"list"}


@pytest.mark.parametrize("is_read_only", [True])
async def test_pages_that_only_read_have_no_buttons_and_refuse_changes(
    client: Client, runs: FakeRuns
) -> None:
    page = (await client.get("/runs/run")).text
    assert "steer" not in page and "/runs/new" not in page
    refused = await client.post("/runs/run/steer/cancel")
    assert refused.status_code == 403 and "only read" in refused.text
    assert {call[0] for call in runs.calls} <= {"list"}
