"""The pages and the API out of files, as a browser and a script ask them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from services.manager.pages.run.tabs import TABS
from services.manager.viewing.serve import viewing
from tests.manager.test_trained_samples import GROUPS, SIZE, STEPS, record_steps
from tests.manager.viewing.folders import config_of, contents, launched, make_run
from trimaran.config import config_to_tree
from trimaran.errors import InputError
from trimaran.run.runs import EventKind, Run, RunState, config_key
from trimaran.trust.access import NO_TRUST, TOKEN_NAME, Trust, read_token

ROW = {"prompt": "2 + 3?", "answer": "5", "completions": ["six", "5"], "rewards": [0.0, 1.0]}


@asynccontextmanager
async def asking(path: Path, trust: Trust = NO_TRUST) -> AsyncGenerator[httpx.AsyncClient]:
    async with (
        viewing(path, "127.0.0.1:0", trust) as address,
        httpx.AsyncClient(base_url=f"http://{address}") as client,
    ):
        yield client


async def record(folder: Path, files: Path) -> None:
    """A run that has ended."""
    config = config_of(files, run={"keep_payloads": "all"}, rollout={"group_size": SIZE})
    run = make_run(folder, config)
    async with launched(run, config) as processes:
        await record_steps(processes.store, run)
        for step in range(1, STEPS + 1):
            state = Run(run.run_id, RunState.RUNNING, step, STEPS)
            await processes.emit(EventKind.STEP, state, **{"reward/mean": step / STEPS})
        await processes.report(RunState.SUCCEEDED, STEPS, name="demo")
        tree = config_to_tree(config)
        of_before = {**tree, "run": {**tree["run"], "a_key_of_an_earlier_version": 1}}
        await processes.store.put(config_key(run.run_id), of_before)
    token = read_token(folder / TOKEN_NAME)
    (folder / "logs" / "rollout-0.log").write_text(f"one\n{token}\nthree\n")
    (folder / "samples").mkdir()
    (folder / "samples" / "step-00005.jsonl").write_text(json.dumps(ROW) + "\n")


async def test_all_that_a_run_has_left_is_read_and_none_of_it_is_changed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    await record(runs / "ended", tmp_path)
    before = contents(runs)
    async with asking(runs) as client:

        async def get(path: str) -> httpx.Response:
            return (await client.get(f"/v1/runs{path}")).raise_for_status()

        [run] = (await get("")).json()["runs"]
        assert (run["run_id"], run["state"], run["step"]) == ("ended", "succeeded", STEPS)
        assert (await get("/ended/config")).json()["rollout"]["group_size"] == SIZE
        rows = (await get("/ended/metrics")).json()["rows"]
        assert [row["reward/mean"] for row in rows][-1] == 1.0 and len(rows) == STEPS
        assert (await get("/ended/events")).text.count("\nevent: step\n") == STEPS
        assert (await get("/ended/checkpoints")).json() == []
        samples = (await get("/ended/samples")).json()
        assert [sample["answer"] for sample in samples["samples"]] == ["six", "5"]
        trained = (await get(f"/ended/samples?trained_step={STEPS}")).json()
        assert trained["num_samples"] == GROUPS * SIZE
        assert (await get("/ended/logs")).json()["processes"] == ["rollout-0"]
        assert (await get("/ended/logs/rollout-0")).text == "one\n***\nthree\n"
        assert (await get("/ended/ledger/groups/1")).json()["facts"]["group"] == 1
        assert (await get("/ended/ledger")).json()["lines"]
        for page in ("", *(f"/ended/{tab}" for tab in TABS)):
            shown = (await client.get(f"/runs{page}".rstrip("/"))).raise_for_status().text
            assert "read only" in shown and "ended" in shown
    assert contents(runs) == before


async def test_what_would_change_a_run_is_refused(tmp_path: Path) -> None:
    await record(tmp_path / "runs" / "ended", tmp_path)
    async with asking(tmp_path / "runs") as client:
        steering = [("POST", f"/ended/{word}") for word in ("pause", "resume", "cancel", "scale")]
        for verb, path in (("POST", ""), ("DELETE", "/ended"), *steering):
            answer = await client.request(verb, f"/v1/runs{path}", json={"config": "run: {}"})
            assert answer.status_code == 403
            assert "read only; submit and steer runs at a manager" in answer.json()["detail"]
        foreign = await client.get("/v1/runs", headers={"Host": "example.org"})
        assert foreign.status_code == 403 and "not the manager's name" in foreign.json()["detail"]
        page = await client.get("/v1/runs", headers={"Origin": "http://example.org"})
        assert page.status_code == 403


async def test_others_than_this_machines_users_need_a_token(tmp_path: Path) -> None:
    await record(tmp_path / "runs" / "ended", tmp_path)
    for trust in (NO_TRUST, Trust("x" * 16)):
        with pytest.raises(InputError, match="beyond loopback"):
            async with viewing(tmp_path, "192.0.2.1:7990", trust):
                pass
    async with asking(tmp_path / "runs", Trust("x" * 16)) as client:
        assert (await client.get("/v1/runs")).status_code == 401
        shown = {"Authorization": f"Bearer {'x' * 16}"}
        assert (await client.get("/v1/runs", headers=shown)).status_code == 200


async def test_a_run_that_goes_on_is_followed_to_its_end(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    run = make_run(tmp_path / "runs" / "going", config)
    async with launched(run, config) as processes:
        await processes.take_lease()
        await processes.report(RunState.RUNNING)
        async with (
            asking(run.folder) as client,
            client.stream("GET", "/v1/runs/going/events") as events,
        ):
            step = 0
            async for line in events.aiter_lines():
                if not line.startswith("event: "):
                    continue
                if line == "event: finished":
                    break
                step += 1
                state = Run("going", RunState.RUNNING, step, 20)
                if step < 3:
                    await processes.emit(EventKind.STEP, state)
                else:
                    await processes.report(RunState.SUCCEEDED, step)
            assert step == 3
