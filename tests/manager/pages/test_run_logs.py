"""The logs of a run's processes in the browser."""

from __future__ import annotations

import re

import httpx
import pytest

from services.manager.pages.run.logs import level_of
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL


async def test_a_log_goes_on_where_the_page_ended(
    client: httpx.AsyncClient, runs: FakeRuns
) -> None:
    page = (await client.get("/runs/run/logs?process=rollout-0&lines=1000")).text
    assert "line 2 of rollout-0" in page and ">controller</option>" in page
    more = re.search(r'id="more" hx-get="([^"]+)"', page)
    assert more
    runs.log("rollout-0", "ERROR <i>bad</i>")
    part = (await client.get(more[1].replace("&amp;", "&"), headers=PARTIAL)).text
    assert '<div class="bad">ERROR &lt;i&gt;bad&lt;/i&gt;</div>' in part
    assert "line 2" not in part and "after=4" in part
    text = await client.get("/runs/run/logs/rollout-0.log")
    assert text.text.splitlines()[-1] == "ERROR <i>bad</i>"
    assert "attachment" in text.headers["content-disposition"]
    assert (await client.get("/runs/run/logs?process=other")).status_code == 404


async def test_a_log_is_shown_that_the_run_has(client: httpx.AsyncClient, runs: FakeRuns) -> None:
    """Runs of `trimaran train` have no launcher's, and young ones none at all."""
    page = (await client.get("/runs/run/logs")).text
    assert "line 2 of controller" in page and "<option selected>controller</option>" in page
    runs.with_log = ()
    page = await client.get("/runs/run/logs")
    assert page.status_code == 200 and ">Download<" not in page.text and 'id="more"' in page.text


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("2026-11-28 03:22:47,821 rollout-0 WARNING services.rollout: x", "warn"),
        ('{"time": "2026-11-28T03:22:47.821Z", "level": "ERROR", "message": "x"}', "bad"),
        ("2026-11-28 03:22:47,821 rollout-0 INFO services.rollout: no ERRORS", ""),
        ("x" * 200 + " ERROR ", ""),
    ],
)
def test_the_level_stands_at_the_beginning(line: str, level: str) -> None:
    assert level_of(line) == level
