"""The page of curves, the rows that it asks for, and what becomes of them where they are too many."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from httpx import AsyncClient as Client

from services.manager.pages.run import series
from services.manager.pages.run.charts import CHARTS
from services.manager.pages.run.thinning import SECONDS, STEP, Table
from services.manager.run_data.metric_rows import RowCursor, RowPage
from tests.clients.fake_runs import FakeRuns
from trimaran.run.runs import EventKind
from trimaran.telemetry.metrics import METRICS, REWARD_MEAN

SERIES = "/runs/run/series"


async def ask(client: Client, **query: Any) -> Any:
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
    client: Client, runs: FakeRuns
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
    client: Client, runs: FakeRuns
) -> None:
    for step in range(1, 6):
        runs.tell("run", EventKind.STEP, {"trainer/loss": step, REWARD_MEAN: 0}, step=step)
    answer = await ask(client, chart=["trainer/loss"], **{"from": 2, "to": 3})
    assert answer["tables"][0]["means"] == {"trainer/loss": [2, 3]}
    assert [one["name"] for one in answer["choice"]] == ["reward", "trainer/loss"]
    assert answer["choice"][1]["about"].startswith("loss of an update")


async def test_what_is_kept_is_shown_to_nobody_else_and_of_no_other_run(
    client: Client, runs: FakeRuns
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
    monkeypatch: pytest.MonkeyPatch, client: Client, runs: FakeRuns
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
    client: Client, runs: FakeRuns
) -> None:
    runs.add("other")
    runs.add("<b>")
    page = await client.get("/runs/run?with=other&with=%3Cb%3E&with=run&with=")
    assert page.text.count('name="with" value=') == 2
    assert 'value="&lt;b&gt;" checked' in page.text and "<b>" not in page.text
    many = {"with": [str(number) for number in range(10)]}
    assert (await client.get("/runs/run", params=many)).status_code == 422


LOSS = "trainer/loss"


def rows(steps: range, value: float | None = None) -> list[dict[str, Any]]:
    """With the step as its own value."""
    return [
        {"kind": "step", "step": step, "time": 100.0 + step, LOSS: step if value is None else value}
        for step in steps
    ]


def all_of(table: Table, points: int = 1000) -> Any:
    stride = table.find_stride(0, 1 << 31, points)
    return table.cut([LOSS, "unknown"], 0, 1 << 31, stride)


def test_few_rows_stand_as_they_are() -> None:
    table = Table(most=8)
    table.add(rows(range(1, 4)))
    table.add([{"kind": "step", "step": 4, "time": 104.0, LOSS: None, "trainer/kl": 1.0}])
    cut = all_of(table)
    assert cut.means[STEP].tolist() == [1, 2, 3, 4]
    assert cut.means[SECONDS].tolist() == [0, 1, 2, 3]
    assert str(cut.means[LOSS].tolist()) == "[1.0, 2.0, 3.0, nan]"
    assert "unknown" not in cut.means and table.keys == [LOSS, "trainer/kl"]


def test_many_rows_share_buckets_that_keep_mean_least_and_greatest() -> None:
    table = Table(most=8)
    for step in range(32):
        table.add(rows(range(step, step + 1)))
    assert table.stride == 4
    cut = all_of(table)
    assert cut.means[LOSS].tolist() == [1.5, 5.5, 9.5, 13.5, 17.5, 21.5, 25.5, 29.5]
    assert (cut.lows[LOSS][1], cut.highs[LOSS][1]) == (4, 7)
    shorter = all_of(table, points=3)
    assert shorter.means[STEP].tolist() == [7.5, 23.5]
    part = table.cut([LOSS], 6, 9, 4)
    assert part.means[LOSS].tolist() == [5.5, 9.5]


def test_a_table_may_begin_late() -> None:
    table = Table(most=8)
    table.add(rows(range(100_000, 100_003)))
    assert all_of(table).means[LOSS].tolist() == [100_001]


def test_a_step_that_is_trained_again_replaces_the_former_and_the_others_stay() -> None:
    table = Table(most=8)
    table.add(rows(range(6)) + rows(range(3, 5), value=50.0))
    assert all_of(table).means[LOSS].tolist() == [0, 1, 2, 50, 50, 5]
    table.add(rows(range(8, 16)))
    table.add(rows(range(12, 14), value=70.0))
    assert all_of(table).means[LOSS].tolist()[-2:] == [70, 14.5]
