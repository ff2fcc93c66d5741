"""Which runs the table shows, in which order, and what it weighs."""

from __future__ import annotations

import re

import httpx
import pytest

from services.manager.pages.runs.query import COLUMNS, TableQuery
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL
from trimaran.run.runs import Run, RunState

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
    client: httpx.AsyncClient, runs: FakeRuns
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
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    answer = await client.get("/runs?sort=colour")
    assert answer.status_code == 422 and "sort" in answer.text
