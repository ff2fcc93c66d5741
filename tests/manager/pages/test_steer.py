"""The buttons of a run: which there are, what they ask first, and what they do."""

from __future__ import annotations

import httpx
import pytest

from services.manager.pages.runs.actions import RunAction, actions
from tests.clients.fake_runs import FakeRuns
from trimaran.run.runs import TRANSITIONS, Replicas, RunState


@pytest.mark.parametrize("state", [state for state in RunState if state is not RunState.UNKNOWN])
async def test_each_button_of_a_state_asks_first_and_then_does_it(
    state: RunState, client: httpx.AsyncClient, runs: FakeRuns
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


async def test_what_cannot_be_done_stays_a_question_that_says_why(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    form = {"min_replicas": "5", "max_replicas": "4"}
    answer = await client.post("/runs/run/steer/scale", data=form)
    assert answer.status_code == 422 and answer.headers["hx-retarget"] == "#dialog"
    assert "min_replicas: 5" in answer.text and 'value="5"' in answer.text
    late = await client.post("/runs/run/steer/delete")
    assert late.status_code == 409 and "cancel it first" in late.text


@pytest.mark.parametrize("token", ["viewer"])
async def test_a_viewer_has_no_buttons_and_may_not_press_them(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    assert "steer" not in (await client.get("/runs/run")).text
    for action in RunAction:
        assert (await client.get(f"/runs/run/steer/{action}")).status_code == 403
        assert (await client.post(f"/runs/run/steer/{action}")).status_code == 403
    assert {call[0] for call in runs.calls} <= {"list"}


@pytest.mark.parametrize("is_read_only", [True])
async def test_pages_that_only_read_have_no_buttons_and_refuse_changes(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    assert "steer" not in (await client.get("/runs/run")).text
    refused = await client.post("/runs/run/steer/cancel")
    assert refused.status_code == 403 and "only read" in refused.text
    assert {call[0] for call in runs.calls} <= {"list"}
