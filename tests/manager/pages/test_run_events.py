"""A run's events in the browser."""

from __future__ import annotations

import re

import httpx

from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL
from trimaran.run.runs import EventKind


async def test_the_newest_come_first_and_new_ones_are_added(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    for step in range(1, 150):
        runs.step("run", step, 0.5)
    page = (await client.get("/runs/run/events")).text
    steps = re.findall(r'class="figure">(\d+)<', page)
    assert steps == [str(step) for step in range(149, 49, -1)]
    older = re.search(r"before=(\d+)", page)
    assert older
    more = (await client.get(f"/runs/run/events?before={older[1]}", headers=PARTIAL)).text
    assert re.findall(r'class="figure">(\d+)<', more)[0] == "49" and "after=" not in more
    after = re.search(r"after=(\d+)", page)
    assert after
    runs.tell("run", EventKind.SKIPPED, text="rows:7: <b>too long</b>")
    new = (await client.get(f"/runs/run/events?after={after[1]}", headers=PARTIAL)).text
    assert f"after={int(after[1]) + 1}" in new and "&lt;b&gt;too long" in new
    assert len(re.findall("<tr", new)) == 2


async def test_kinds_are_chosen(client: httpx.AsyncClient, runs: FakeRuns) -> None:
    runs.step("run", 1, 0.5)
    runs.tell("run", EventKind.REPLICA_LOST, text="rollout-1: no answer")
    trouble = (await client.get("/runs/run/events?kind=trouble")).text
    assert "replica lost: rollout-1: no answer" in trouble and "reward 0.500" not in trouble
