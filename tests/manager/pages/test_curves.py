"""The page of curves, and the rows that it asks for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import httpx
import pytest

from services.manager.pages.run import series
from services.manager.pages.run.charts import CHARTS
from services.manager.run_data.metric_rows import RowCursor, RowPage
from tests.clients.fake_runs import FakeRuns
from trimaran.run.runs import EventKind
from trimaran.telemetry.metrics import METRICS, REWARD_MEAN

SERIES = "/runs/run/series"


async def ask(client: httpx.AsyncClient, **query: Any) -> Any:
    """Until all is read."""
    while True:
        answer = await client.get(SERIES, params=query)
        assert answer.status_code == 200, answer.text
        if answer.json()["share"] == 1:
            return answer.json()


def test_charts_draw_declared_numbers() -> None:
    declared = {metric.key for metric in METRICS}
    assert {key for chart in CHARTS for key in (*chart.keys.values(), *chart.spread)} <= declared


@pytest.mark.parametrize("token", ["viewer"])
async def test_the_rows_of_a_run_come_once_and_then_what_is_new(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.step("run", 1, 0.25)
    runs.tell(
        "run", EventKind.VALIDATION, {"validation/pass_at/16": 1, "validation/pass_at/2": 0.5}
    )
    runs.step("run", 2, math.nan)
    answer = await ask(client)
    steps, validations = answer["tables"]
    assert (steps["step"], steps["means"][REWARD_MEAN]) == ([1, 2], [0.25, None])
    assert validations["means"]["validation/pass_at/2"] == [0.5]
    lines = {chart["name"]: [one["label"] for one in chart["lines"]] for chart in answer["charts"]}
    assert lines == {"reward": ["mean"], "correct": ["pass@2", "pass@16"]}
    runs.step("run", 3, 0.75)
    later = (await ask(client, since=answer["since"]))["tables"][0]
    assert (later["begin"], later["step"]) == (2, [2, 3])
    runs.step("run", 1, 0.5)
    resumed = (await ask(client, since=answer["since"]))["tables"][0]
    assert (resumed["begin"], resumed["means"][REWARD_MEAN]) == (-1, [0.5, None, 0.75])


async def test_any_number_can_be_chosen_and_a_part_of_the_steps(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    for step in range(1, 6):
        runs.tell("run", EventKind.STEP, {"trainer/loss": step, REWARD_MEAN: 0}, step=step)
    answer = await ask(client, chart=["trainer/loss"], **{"from": 2, "to": 3})
    assert answer["tables"][0]["means"] == {"trainer/loss": [2, 3]}
    assert [one["name"] for one in answer["choice"]] == ["reward", "trainer/loss"]
    assert answer["choice"][1]["about"].startswith("loss of an update")


async def test_what_is_kept_is_shown_to_nobody_else_and_of_no_other_run(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.step("run", 1, 0.25)
    await ask(client)
    former = runs.runs.pop("run")
    assert (await client.get(SERIES)).status_code == 404
    runs.runs["run"], runs.reported["run"] = replace(former, created_at=5.0), []
    assert (await ask(client))["tables"][0]["step"] == []
    client.cookies.clear()
    assert (await client.get(SERIES)).status_code == 303


async def test_a_run_of_100_000_steps_is_read_in_parts_and_answers_in_less_than_2_mb(
    monkeypatch: pytest.MonkeyPatch, client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    keys = [key for chart in CHARTS for key in (*chart.keys.values(), *chart.spread)]
    row = dict.fromkeys(keys, 1 / 3) | {"kind": "step", "time": 1.0}

    async def rows(client: Any, run_id: str, after: RowCursor) -> RowPage:
        end = after.position + 5000
        page = [row | {"step": step} for step in range(after.position + 1, end + 1)]
        return RowPage(page, RowCursor("file", end), after.position == 0, end / 100_000)

    monkeypatch.setattr(runs, "metric_rows", rows)
    monkeypatch.setattr(series, "READ_SECONDS", 0.0)
    first = await client.get(SERIES)
    assert 0 < first.json()["share"] < 1 and "tables" not in first.json()
    table = (await ask(client))["tables"][0]
    assert 500 < len(table["step"]) <= 1000 and len(table["means"]) >= 25
    assert len((await client.get(SERIES)).content) < 1 << 20
    assert len((await client.get("/runs/run")).content) < 1 << 16


async def test_the_address_of_the_page_says_what_is_laid_over_it(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    runs.add("other")
    runs.add("<b>")
    page = await client.get("/runs/run?with=other&with=%3Cb%3E&with=run&with=")
    assert page.text.count('name="with" value=') == 2
    assert 'value="&lt;b&gt;" checked' in page.text and "<b>" not in page.text
    many = {"with": [str(number) for number in range(10)]}
    assert (await client.get("/runs/run", params=many)).status_code == 422
