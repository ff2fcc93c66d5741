"""Events, logs, processes, configuration and checkpoints of a run in the browser."""

from __future__ import annotations

import re
from typing import Any

import pytest
from httpx import AsyncClient as Client

from services.manager.pages.run.config_rows import compare, config_rows
from services.manager.pages.run.logs import level_of
from services.manager.pages.run.process_rows import about_numbers
from tests.clients.fake_runs import FakeRuns
from tests.manager.pages.browsing import PARTIAL
from trimaran.config import load_config
from trimaran.run.answers import Checkpoint
from trimaran.run.runs import EventKind
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.series import (
    CONTROLLER_GROUPS,
    ROLLOUT_PAUSE,
    SYNC_LINEAGE,
    SYNC_PAUSE,
    SYNC_STEP,
)


async def test_the_newest_come_first_and_new_ones_are_added(client: Client, runs: FakeRuns) -> None:
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


async def test_kinds_are_chosen(client: Client, runs: FakeRuns) -> None:
    runs.step("run", 1, 0.5)
    runs.tell("run", EventKind.REPLICA_LOST, text="rollout-1: no answer")
    trouble = (await client.get("/runs/run/events?kind=trouble")).text
    assert "replica lost: rollout-1: no answer" in trouble and "reward 0.500" not in trouble


async def test_a_log_goes_on_where_the_page_ended(client: Client, runs: FakeRuns) -> None:
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


async def test_a_log_is_shown_that_the_run_has(client: Client, runs: FakeRuns) -> None:
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


async def test_each_process_says_how_it_is(client: Client) -> None:
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


async def test_the_timeline_is_asked_for_by_its_window(client: Client) -> None:
    answer = (await client.get("/runs/run/timeline?seconds=10")).json()
    assert answer["lanes"] == ["rollout-0"] and answer["grows"] is True
    assert answer["spans"] == [[0, 0, 5.0, 4.0, 1, 1, 1.0]]


TREE = {
    "model": {"path": "/models/tiny"},
    "data": {"train": [{"path": "/data/train.jsonl", "task": "sums"}]},
    "reward": {"rules": {"gsm8k": 1.0}},
    "rollout": {"group_size": 16},
    "algorithm": {"loss": {"type": "cispo"}},
}


def test_what_differs_is_said_beside_its_default() -> None:
    changed = {row.key: (row.value, row.instead) for row in config_rows(TREE) if row.differs}
    assert changed == {
        "model.path": ("/models/tiny", ""),
        "data.train.0.path": ("/data/train.jsonl", ""),
        "data.train.0.task": ("sums", "default"),
        "rollout.group_size": ("16", "8"),
        "reward.rules": ("gsm8k", ""),
        "algorithm.loss.type": ("cispo", "ppo_clip"),
    }


def test_two_runs_differ_in_values_and_in_keys() -> None:
    other = config_rows({**TREE, "rollout": {}, "algorithm": {"loss": {"type": "ppo_clip"}}})
    rows = {row.key: (row.value, row.instead) for row in compare(config_rows(TREE), other)}
    assert rows["rollout.group_size"] == ("16", "8")
    assert rows["algorithm.loss.type"] == ("cispo", "ppo_clip")
    assert not any(key.startswith("trainer.") for key in rows)
    only_theirs = [key for key, (value, _) in rows.items() if not value]
    assert only_theirs and all(key.startswith("algorithm.loss.") for key in only_theirs)


async def test_the_page_shows_what_was_changed_or_all(
    tmp_path, client: Client, runs: FakeRuns
) -> None:
    changed = (await client.get("/runs/run/config")).text
    assert "trainer.learning_rate" in changed and "rollout.group_size" not in changed
    assert "rollout.group_size" in (await client.get("/runs/run/config?show=all")).text
    runs.add("other")
    same = await client.get("/runs/run/config?with=other")
    assert "Both runs have the same configuration" in same.text
    answer = await client.get("/runs/run/config.yaml")
    assert answer.headers["content-disposition"] == 'attachment; filename="run.yaml"'
    (tmp_path / "run.yaml").write_text(answer.text)
    assert load_config(tmp_path / "run.yaml").trainer.learning_rate == 1e-5


async def test_the_newest_come_first_and_the_best_is_marked(
    monkeypatch: pytest.MonkeyPatch, client: Client, runs: FakeRuns
) -> None:
    async def saved(*_: Any) -> list[Checkpoint]:
        return [
            Checkpoint(1, "/runs/run/checkpoints/1", "aa", False, saved_at=1000.0),
            Checkpoint(2, "/runs/run/checkpoints/2", "bb", True, 0.5, 3_000_000, 2000.0),
            Checkpoint(3, "/runs/run/checkpoints/3", "cc", True, 0.25, 3_000_000, 3000.0),
        ]

    monkeypatch.setattr(runs, "checkpoints", saved)
    page = (await client.get("/runs/run/checkpoints")).text
    third, second, first = (page.index(f'id="step-{step}"') for step in (3, 2, 1))
    assert third < second < first
    assert page.count(">best<") == 1 and second < page.index(">best<") < first
    assert "checkpoints/2" in page and "checkpoints/1" not in page and "2.9 MiB" in page
