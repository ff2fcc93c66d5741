"""A run's processes and their timeline in the browser."""

from __future__ import annotations

import re

import httpx

from services.manager.pages.run.process_rows import about_numbers
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.series import (
    CONTROLLER_GROUPS,
    ROLLOUT_PAUSE,
    SYNC_LINEAGE,
    SYNC_PAUSE,
    SYNC_STEP,
)


async def test_each_process_says_how_it_is(client: httpx.AsyncClient, runs: FakeRuns) -> None:
    assert 'hx-get="/runs/run/processes/rows"' in (await client.get("/runs/run/processes")).text
    part = (await client.get("/runs/run/processes/rows", headers=PARTIAL)).text
    rows = dict(re.findall(r'id="process-([\w-]+)">(.+?)</tr>', part, re.DOTALL))
    assert list(rows) == ["controller", "rollout-0", "rollout-1"]
    assert "does not answer" in rows["controller"] and ">7</td>" in rows["controller"]
    said = ("answers", "<td>0.7</td>", "sampled", ">2</td>", "logs?process=rollout-0")
    assert all(text in rows["rollout-0"] for text in said)
    assert "no answer" in rows["rollout-1"] and "<td>0.6</td>" in rows["rollout-1"]


def test_a_row_shows_what_a_process_counts() -> None:
    numbers = Exposition()
    numbers.show(SYNC_STEP, lambda: 12.0)
    numbers.show(SYNC_LINEAGE, lambda: 1.0)
    numbers.show(SYNC_PAUSE, lambda: 0.25)
    numbers.show(CONTROLLER_GROUPS, lambda: {"scored": 3.0, "generating": 2.0})
    about = about_numbers(numbers.text({"run": "a b}"}).decode())
    assert about["version"] == "1.12"
    assert about["work"] == "5 groups under way, last pause 0.250 s"
    numbers = Exposition()
    numbers.show(ROLLOUT_PAUSE, lambda: 0.125)
    assert about_numbers(numbers.text({}).decode())["work"] == "last pause 0.125 s"
    assert about["started_at"] > 1e9 and about["num_bytes"] > 1e6


async def test_the_timeline_is_asked_for_by_its_window(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    answer = (await client.get("/runs/run/timeline?seconds=10")).json()
    assert answer["lanes"] == ["rollout-0"] and answer["grows"] is True
    assert answer["spans"] == [[0, 0, 5.0, 4.0, 1, 1, 1.0]]
