"""Runs from creation to deletion, with processes that a test plays."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import shutil
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.manager.manager import RENEW_SECONDS
from services.manager.records import LEASE, Managed, Records
from services.manager.serve import Serving, launcher_environment, serving
from services.manager.settings import ManagerSettings
from tests.manager.fakes import (
    DEADLINE,
    FAST,
    FakeLauncher,
    FakeProcesses,
    managing,
    opened,
    processes_of,
    specification,
    until,
)
from trimaran.errors import (
    AlreadyExistsError,
    ForbiddenError,
    InputError,
    LimitError,
    NotFoundError,
    StaleEpochError,
    StateError,
    UnavailableError,
)
from trimaran.run.answers import LedgerAnswer
from trimaran.run.context import RunContext
from trimaran.run.launchers import Presence
from trimaran.run.runs import EventKind, Run, RunState, checkpoint_key
from trimaran.store import open_store
from trimaran.trust.access import LOCAL, ClientIdentity, Role

TURNS = {"pools": "colocated", "groups_per_step": 16}
ANN = ClientIdentity("ann", "ann", Role.SUBMITTER)
BOB = ClientIdentity("bob", "bob", Role.SUBMITTER)
OLGA = ClientIdentity("olga", "olga", Role.OPERATOR)


def state_of(served: Serving, run_id: str) -> RunState:
    return served.manager.records.get(run_id).state


async def create(served: Serving, folder: Path, request: str = "r", **sections: Any) -> str:
    text = specification(folder, **sections)
    return (await served.runs.create(ANN, request, text, (), 0)).run_id


async def started(served: Serving, launcher: FakeLauncher, run_id: str) -> FakeProcesses:
    """Its launcher has the lease; the store stays open until the test ends."""
    await until(lambda: launcher.there.get(run_id) is Presence.THERE)
    run = launcher.contexts[run_id]
    store = await open_store(run.store_url)
    opened.append(store)
    processes = FakeProcesses(store, run)
    await processes.take_lease()
    return processes


async def running(served: Serving, launcher: FakeLauncher, run_id: str) -> FakeProcesses:
    """The same, and the manager knows that it runs."""
    processes = await started(served, launcher, run_id)
    await processes.report(RunState.RUNNING, starts=1)
    await until(lambda: state_of(served, run_id) is RunState.RUNNING)
    return processes


def waiting_for(served: Serving, run_id: str) -> str:
    return served.manager.records.get(run_id).view.waiting_for


async def test_a_run_from_submission_to_its_end(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path, rollout={"replicas": 2, "tensor_parallel": 2})
        processes = await started(served, launcher, run_id)
        config = yaml.safe_load((tmp_path / "runs" / run_id / "config.yaml").read_text())
        assert config["trainer"]["devices"] == [0] and config["trainer"]["device"] == "cuda"
        assert config["rollout"]["devices"] == [1, 2, 3, 4]
        assert await processes.record("goal") == {"goal": "run"}
        await processes.report(RunState.RUNNING, step=3)
        await until(lambda: state_of(served, run_id) is RunState.RUNNING)
        run = await served.runs.get(ANN, run_id)
        assert (run.step, run.owner, run.replicas.granted) == (3, "ann", 2)
        await processes.report(RunState.SUCCEEDED, step=20)
        last_word = Run(run_id, RunState.SUCCEEDED, 20, 20)
        await processes.emit(EventKind.PROCESS, last_word)  # and yet it finishes once
        await asyncio.sleep(0.1)
        assert state_of(served, run_id) is RunState.RUNNING  # its devices are not free yet
        launcher.there[run_id] = Presence.GONE
        await until(lambda: state_of(served, run_id) is RunState.SUCCEEDED)
        run = await served.runs.get(ANN, run_id)
        assert run.replicas.granted == 0 and run.ended_at
        events = [e async for e in served.runs.events(ANN, run_id)]
        assert [e.run.state for e in events if e.kind is EventKind.FINISHED] == ["succeeded"]
        assert events[0].run.state is RunState.QUEUED and events[-1].run.owner == "ann"


async def test_a_run_gets_the_plugin_tokens_that_it_names_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, hosts = FakeLauncher(), {}
    for name in ("A", "B"):
        monkeypatch.setenv(f"TRIMARAN_{name}_TOKEN", f"secret {name}")
        hosts[f"http://{name.lower()}:1"] = {"token_variable": f"TRIMARAN_{name}_TOKEN"}
    folders = {"models": [tmp_path], "data": [tmp_path], "plugin_hosts": list(hosts)}
    allow = folders | {"plugin_credentials": hosts}
    async with managing(tmp_path / "runs", launcher, allow=allow) as served:
        plugin = {"url": "http://a:1", "token_variable": "TRIMARAN_A_TOKEN"}
        named = await create(served, tmp_path, "1", reward={"rules": {"judge": {"plugin": plugin}}})
        other = await create(served, tmp_path, "2")
        await until(lambda: len(launcher.secrets) == 2)
        assert launcher.secrets == {named: {"TRIMARAN_A_TOKEN": "secret A"}, other: {}}
    monkeypatch.setenv("NOTIFY_SOCKET", "secret /run/systemd/notify")
    settings = ManagerSettings.model_validate({"allow": allow})
    assert not [v for v in launcher_environment(settings).values() if v.startswith("secret ")]


async def test_the_same_request_is_the_same_run(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs") as served:
        text = specification(tmp_path)
        asked = [served.runs.create(ANN, "once", text, (), 0) for _ in range(20)]
        runs = await asyncio.gather(*asked)
        assert len({run.run_id for run in runs}) == 1
        other = await served.runs.create(BOB, "once", text, (), 0)
        assert other.run_id != runs[0].run_id
        with pytest.raises(AlreadyExistsError, match="once"):
            await served.runs.create(ANN, "once", text, ["run.seed=2"], 0)


async def test_a_request_that_is_repeated_is_answered_also_where_it_would_be_refused_by_now(
    tmp_path: Path,
) -> None:
    """The client did not hear the first answer; the manager was started again meanwhile."""
    text = specification(tmp_path, rollout={"replicas": 2})
    async with managing(tmp_path / "runs") as served:
        asked = await served.runs.create(ANN, "once", text, ["run.steps=30"], 7)
    limits = {"replicas": 1, "steps": 10, "priority": 5, "runs": 1, "kept": 1}
    async with managing(tmp_path / "runs", limits=limits) as served:
        (tmp_path / "train.jsonl").unlink()
        again = await served.runs.create(ANN, "once", text, ["run.steps=30"], 7)
        assert again.run_id == asked.run_id
        for other in ((["run.steps=31"], 7), (["run.steps=30"], 6)):
            with pytest.raises(AlreadyExistsError, match="another specification or priority"):
                await served.runs.create(ANN, "once", text, *other)


async def test_the_request_of_a_run_that_is_being_deleted_is_free_once_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks meanwhile is told to ask again, as clients do by themselves."""
    async with managing(tmp_path / "runs", FakeLauncher(dies_at_once=True)) as served:
        run_id = await create(served, tmp_path)
        await served.runs.cancel(ANN, run_id)
        await until(lambda: state_of(served, run_id).has_ended)
        gate, remove = asyncio.Event(), served.manager.records.remove

        async def slowly(run_id: str) -> None:
            await gate.wait()
            await remove(run_id)

        monkeypatch.setattr(served.manager.records, "remove", slowly)
        deleting = asyncio.create_task(served.runs.delete(ANN, run_id))
        await until(lambda: served.manager.records.all()[0].is_deleted)
        with pytest.raises(UnavailableError, match=f"that of {run_id}, which is being deleted"):
            await create(served, tmp_path)
        with pytest.raises(NotFoundError):
            await served.runs.get(ANN, run_id)
        gate.set()
        await deleting
        again = await create(served, tmp_path)
        assert await create(served, tmp_path) == again
        assert [run.run_id for run in served.manager.records.all()] == [again]


async def test_a_manager_that_dies_in_the_middle_of_a_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written and nothing else: the next manager makes the rest."""
    async with managing(tmp_path / "runs") as served:
        records = served.manager.records
        served.manager._looks.clear()

        async def dead() -> None:
            await asyncio.sleep(3600)

        monkeypatch.setattr(served.manager, "tick", dead)
        await asyncio.sleep(0.6)
        run_id = await create(served, tmp_path)
        assert records.get(run_id).state is RunState.QUEUED
        assert not (tmp_path / "runs" / run_id).exists()
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        assert await create(served, tmp_path) == run_id
        await until(lambda: launcher.events == [f"start {run_id}"])


async def test_an_unanswered_write_is_looked_up(tmp_path: Path) -> None:
    """The store has written the run and the answer was lost: the same request finds it."""
    async with managing(tmp_path / "runs") as served:
        store: Any = served.manager.records.store
        put_fenced = store.put_fenced

        async def lossy(*arguments: Any) -> None:
            await put_fenced(*arguments)
            store.put_fenced = put_fenced
            raise UnavailableError("the answer was lost")

        store.put_fenced = lossy
        with pytest.raises(UnavailableError):
            await create(served, tmp_path)
        run_id = await create(served, tmp_path)
        assert [run.run_id for run in served.manager.records.all()] == [run_id]

        async def refused(changed: Mapping[str, Any], *fence: Any) -> None:
            if not changed.keys() - {f"managed/{run_id}"}:
                await put_fenced(changed, *fence)  # of the loop, and not of the one that is made
                return
            store.put_fenced = put_fenced
            raise UnavailableError("it was not written")

        store.put_fenced = refused
        with pytest.raises(UnavailableError):
            await create(served, tmp_path, "other")
        again = [create(served, tmp_path, "other") for _ in range(5)]
        [other] = set(await asyncio.gather(*again))
        assert {run.run_id for run in served.manager.records.all()} == {run_id, other}
        stored = await store.list_records("managed/")
        assert {key for key, _ in stored} == {f"managed/{run_id}", f"managed/{other}"}


async def test_pause_and_resume(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await running(served, launcher, run_id)
        assert (await served.runs.pause(ANN, run_id)).state is RunState.PAUSING
        assert (await served.runs.pause(ANN, run_id)).state is RunState.PAUSING
        while await processes.record("goal") != {"goal": "pause"}:
            await asyncio.sleep(0.01)
        with pytest.raises(StateError, match="pausing"):
            await served.runs.resume(ANN, run_id)
        await processes.report(RunState.PAUSED, step=4)
        launcher.there[run_id] = Presence.GONE
        await until(lambda: state_of(served, run_id) is RunState.PAUSED)
        assert (await served.runs.resume(ANN, run_id)).state is RunState.QUEUED
        # The old report says paused; it is of the former start, and counts no more.
        await until(lambda: launcher.there[run_id] is Presence.THERE)
        await asyncio.sleep(0.2)
        assert state_of(served, run_id) is RunState.STARTING
        assert launcher.events == [f"start {run_id}"] * 2
        await processes.report(RunState.RUNNING, step=4)
        await until(lambda: state_of(served, run_id) is RunState.RUNNING)


async def test_cancel_in_every_state(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        active = await create(served, tmp_path, "1", trainer={"data_parallel": 4})
        queued = await create(served, tmp_path, "2", trainer={"data_parallel": 4})
        await running(served, launcher, active)
        assert (await served.runs.cancel(ANN, queued)).state is RunState.CANCELLED
        last = [event async for event in served.runs.events(ANN, queued)][-1]
        assert (last.kind, last.run.state) == (EventKind.FINISHED, RunState.CANCELLED)
        assert (await served.runs.cancel(ANN, active)).state is RunState.CANCELLING
        launcher.there[active] = Presence.GONE  # its launcher died while it was cancelled
        await until(lambda: state_of(served, active) is RunState.CANCELLED)


async def test_a_dead_launcher_is_started_again_until_its_budget_is_spent(tmp_path: Path) -> None:
    launcher = FakeLauncher(dies_at_once=True)
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        log = tmp_path / "runs" / run_id / "logs" / "launcher.log"
        await until(log.parent.exists)
        log.write_text("no such module\n")
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        run = await served.runs.get(ANN, run_id)
        assert "died 4 times" in run.error and "no such module" in run.error
        assert f"trimaran resume {run_id}" in run.remedy
        assert launcher.events == [f"start {run_id}"] * 4
        events = [event async for event in served.runs.events(ANN, run_id)]
        assert sum("starts it again" in event.text for event in events) == 3


async def test_a_run_that_could_never_start_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs") as served:
        cases: list[tuple[dict[str, Any], str]] = [
            (
                {"trainer": {"labels": {"memory": "80"}}},
                r"trainer\.labels .*: no pool is like that",
            ),
            ({"rollout": {"device": "npu"}}, r"rollout\.device npu, .* there are gpu \(cuda"),
            ({"trainer": {"data_parallel": 8}}, r"rollout\.replicas: the run needs 8 cuda for the"),
            ({"rollout": {"tensor_parallel": 9}}, r"1 x 9 cuda for replicas, each of these in one"),
            (
                {"run": TURNS, "trainer": {"data_parallel": 9}, "rollout": {"replicas": 9}},
                r"9 x 1 cuda for replicas and trainer in turns, .* \(gpu has 8 cuda\).*parallel$",
            ),
        ]
        for sections, words in cases:
            with pytest.raises(InputError, match=words):
                await create(served, tmp_path, **sections)
        assert served.manager.records.all() == []


async def test_a_run_that_the_pools_have_become_too_small_for_says_so(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs") as served:
        large = await create(served, tmp_path, "1", trainer={"data_parallel": 4})
        small = await create(served, tmp_path, "2", trainer={"data_parallel": 4})
        await served.runs.pause(ANN, small)
        await until(lambda: state_of(served, large) is RunState.STARTING)
        other = await create(served, tmp_path, "3", trainer={"data_parallel": 4})
    pools = {"gpu": {"device": "cuda", "devices": [0, 1]}}
    async with managing(tmp_path / "runs", pools=pools) as served:
        await until(lambda: "the pools do not have any more" in waiting_for(served, other))
        with pytest.raises(InputError, match=f"run {small}: the run needs 4 cuda .* lower"):
            await served.runs.resume(ANN, small)
        await served.runs.cancel(ANN, other)


async def test_words_for_clients_name_no_path_of_this_machine(tmp_path: Path) -> None:
    """Where the run's folder lies stands in `Run.folder` alone."""
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        error = f"reward died\nits whole log: {processes.run.folder}/logs/reward.log"
        await processes.report(RunState.FAILED, error=error)
        launcher.there[run_id] = Presence.GONE
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        run = await served.runs.get(ANN, run_id)
        seen = [run, *[event.run async for event in served.runs.events(ANN, run_id)]]
        texts = [event.text async for event in served.runs.events(ANN, run_id)]
        texts += [text for each in seen for text in (each.error, each.remedy, each.held)]
        assert not [text for text in texts if str(tmp_path) in text]
        assert run.error == "reward died\nits whole log: logs/reward.log"
        assert run.folder == str(processes.run.folder)


async def test_a_launcher_that_cannot_be_started_is_the_reason_of_the_failure(
    tmp_path: Path,
) -> None:
    class Refusing(FakeLauncher):
        async def start(self, run: RunContext, secrets: Mapping[str, str]) -> None:
            raise InputError("no launcher can be started (Permission denied)")

    async with managing(tmp_path / "runs", Refusing()) as served:
        run_id = await create(served, tmp_path)
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        assert "Permission denied" in (await served.runs.get(ANN, run_id)).error


async def test_a_disk_without_room_for_a_launchers_files_holds_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "config.partial")

    monkeypatch.setattr("services.manager.run_data.folders.write_config", is_full)
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        await until(lambda: "No space left" in served.manager.records.get(run_id).held)
        assert state_of(served, run_id) is RunState.STARTING
        monkeypatch.undo()
        await until(lambda: launcher.there.get(run_id) is Presence.THERE)


async def test_a_run_whose_folder_became_unusable_fails_once_its_processes_are_gone(
    tmp_path: Path,
) -> None:
    """Until then its devices are not free. A new manager looks at the folder again."""
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        await running(served, launcher, run_id)
    (tmp_path / "runs" / run_id / "context.json").write_text("{")
    async with managing(tmp_path / "runs", launcher) as served:
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        assert launcher.events == [f"start {run_id}", f"kill {run_id}"]
        assert "context.json: cannot be read" in (await served.runs.get(ANN, run_id)).error


async def test_a_launcher_that_is_frozen_in_the_middle_of_a_write_is_killed(tmp_path: Path) -> None:
    """It keeps the run's store locked: the manager must not wait for it."""
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await running(served, launcher, run_id)
        assert processes.lease
        await processes.store.release(processes.lease)
        with closing(sqlite3.connect(tmp_path / "runs" / run_id / "store.sqlite")) as frozen:
            frozen.execute("BEGIN IMMEDIATE")
            await until(lambda: f"kill {run_id}" in launcher.events, seconds=15)
            frozen.execute("ROLLBACK")
        await until(lambda: launcher.events.count(f"start {run_id}") == 2)


async def test_idle_devices_become_replicas_and_are_taken_back(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path, rollout={"replicas": 1, "max_replicas": 6})
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING)
        while (await processes.record("replicas"))["wanted"] != 6:
            await asyncio.sleep(0.01)
        await processes.listen(*range(6))
        assert (await processes.record("replicas"))["devices"]["5"] == ["6"]
        other = await create(served, tmp_path, "2", trainer={"data_parallel": 2})
        while (await processes.record("replicas"))["wanted"] != 4:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        assert state_of(served, other) is RunState.QUEUED  # they are not gone yet
        await processes.listen(0, 1, 2, 3)
        await until(lambda: launcher.there.get(other) is Presence.THERE)
        grants = [run.grant.devices for run in served.manager.records.all()]
        devices = [device for grant in grants for device in grant]
        assert len(devices) == len(set(devices)) == 8


async def test_pools_that_take_turns_are_given_their_devices_once(tmp_path: Path) -> None:
    """Seven of eight devices as 3 + 4 in turns; what waits for one more gets none of theirs."""
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher, limits={"devices": 4}) as served:
        alone = await create(served, tmp_path, "1", rollout={"replicas": 2})
        four = {"trainer": {"data_parallel": 4}, "rollout": {"replicas": 2, "tensor_parallel": 2}}
        in_turns = await create(served, tmp_path, "2", run=TURNS, **four)
        waits = await create(served, tmp_path, "3")
        for run_id in (alone, in_turns):
            await until(lambda run_id=run_id: launcher.there.get(run_id) is Presence.THERE)
        grants = [served.manager.records.get(run_id).grant for run_id in (alone, in_turns)]
        devices = [device for grant in grants for device in grant.devices]
        assert len(devices) == len(set(devices)) == 7
        await until(lambda: "1 are free in gpu" in waiting_for(served, waits))
        config = yaml.safe_load((tmp_path / "runs" / in_turns / "config.yaml").read_text())
        assert config["trainer"]["devices"] == config["rollout"]["devices"] == [3, 4, 5, 6]
        with pytest.raises(
            InputError, match=r"colocated the run has 2, on the devices of its trainer"
        ):
            await served.runs.scale(ANN, in_turns, 1, 2)
        assert (await served.runs.scale(ANN, in_turns, 2, 2)).replicas.max == 2
        with pytest.raises(LimitError, match=r"counts them once\): 5 is more than .* devices, 4"):
            five = {"trainer": {"data_parallel": 5}, "rollout": {"replicas": 5}}
            await create(served, tmp_path, "4", run=TURNS, **five)


async def test_scale_while_it_runs_and_while_it_waits(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher, limits={"replicas": 7}) as served:
        run_id = await create(served, tmp_path)
        processes = await running(served, launcher, run_id)
        assert (await served.runs.scale(ANN, run_id, 2, 3)).replicas.max == 3
        await until(lambda: served.manager.records.get(run_id).view.replicas.granted == 3)
        await processes.listen(0, 1, 2)
        await served.runs.scale(ANN, run_id, 1, 1)
        await until(lambda: len(served.manager.records.get(run_id).leaving) == 2)
        await processes.listen(0)
        await until(lambda: served.manager.records.get(run_id).view.replicas.granted == 1)
        with pytest.raises(LimitError):
            await served.runs.scale(ANN, run_id, 1, 8)
        with pytest.raises(InputError, match="min_replicas"):
            await served.runs.scale(ANN, run_id, 0, 1)
        with pytest.raises(InputError, match="pools never have"):
            await served.runs.create(
                ANN, "big", specification(tmp_path, trainer={"data_parallel": 8}), (), 0
            )


async def test_delete_removes_the_run_and_nothing_else(tmp_path: Path) -> None:
    outside = tmp_path / "precious"
    outside.mkdir()
    (outside / "file").write_text("keep")
    async with managing(tmp_path / "runs", FakeLauncher(dies_at_once=True)) as served:
        run_id = await create(served, tmp_path)
        with pytest.raises(StateError, match="cancel it"):
            await served.runs.delete(ANN, run_id)
        await until(lambda: state_of(served, run_id) is not RunState.QUEUED)
        await served.runs.cancel(ANN, run_id)
        with pytest.raises(StateError, match="is cancelling; delete it once it has ended"):
            await served.runs.delete(ANN, run_id)
        folder = tmp_path / "runs" / run_id
        (folder / "link").symlink_to(outside)
        (folder / "file-link").symlink_to(outside / "file")
        await until(lambda: state_of(served, run_id) is RunState.CANCELLED)
        await served.runs.delete(ANN, run_id)
        assert not folder.exists() and (outside / "file").read_text() == "keep"
        with pytest.raises(NotFoundError):
            await served.runs.get(ANN, run_id)
    async with managing(tmp_path / "runs") as served:
        assert served.manager.records.all() == []


async def test_a_folder_that_is_another_runs_by_now_stays(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs", FakeLauncher(dies_at_once=True)) as served:
        run_id = await create(served, tmp_path, trainer={"data_parallel": 4})
        other = await create(served, tmp_path, "2", trainer={"data_parallel": 4})
        await until((tmp_path / "runs" / other / "context.json").exists)
        await served.runs.cancel(ANN, other)
        folder = tmp_path / "runs" / other
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "moved")
        await served.runs.delete(ANN, other)
        assert (tmp_path / "moved" / "context.json").exists() and folder.is_symlink()
        await served.runs.cancel(ANN, run_id)
        await until(lambda: state_of(served, run_id) is RunState.CANCELLED)
        own = tmp_path / "runs" / run_id
        shutil.rmtree(own)
        shutil.copytree(tmp_path / "moved", own)
        await served.runs.delete(ANN, run_id)
        assert (own / "context.json").exists()


async def test_pages_and_filters(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs", trainer := FakeLauncher()) as served:
        ids = [
            await create(served, tmp_path, f"{i}", trainer={"data_parallel": 4}) for i in range(7)
        ]
        await served.runs.create(BOB, "b", specification(tmp_path), (), 0)
        await until(lambda: len(trainer.events) >= 1)
        found, token = [], ""
        while True:
            page, token = await served.runs.list(ANN, page_size=3, page_token=token)
            found += [run.run_id for run in page]
            if not token:
                break
        assert found == list(reversed(ids))
        queued, _ = await served.runs.list(ANN, [RunState.QUEUED])
        assert all(run.state is RunState.QUEUED for run in queued) and len(queued) == 6
        assert len((await served.runs.list(LOCAL))[0]) == 8
        assert len((await served.runs.list(LOCAL, owner="bob"))[0]) == 1
        with pytest.raises(ForbiddenError):
            await served.runs.list(ANN, owner="bob")
        with pytest.raises(ForbiddenError):
            await served.runs.get(BOB, ids[0])
        with pytest.raises(InputError, match="page_token"):
            await served.runs.list(ANN, page_token="x")


async def test_a_second_manager_at_the_same_address_is_refused(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs") as served:
        told = f"--address: {served.address}: another manager listens there; use it"
        with pytest.raises(InputError, match=told):
            async with managing(tmp_path / "others", address=served.address):
                pass
        told = f"--http: {served.http_address}: cannot be .* \\(Address already in use .*; name another"
        with pytest.raises(InputError, match=told):
            async with managing(tmp_path / "more", http_address=served.http_address):
                pass


async def test_a_manager_says_which_store_it_waits_for(tmp_path: Path) -> None:
    """And until when, without the password; nothing listens there."""
    said: list[str] = []
    url = "redis://:secret@127.0.0.1:1/0?prefix=x"
    settings = ManagerSettings(folder=tmp_path / "runs", store=url)

    async def serve() -> None:
        async with serving(settings, say=said.append):
            pass

    starting = asyncio.create_task(serve())
    await until(lambda: said)
    assert re.fullmatch(
        r"waits for the store redis://127.0.0.1:1/0 \(x\), until \d\d:\d\d:\d\d", said[0]
    )
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)


async def test_a_manager_that_was_replaced_writes_nothing_and_ends(tmp_path: Path) -> None:
    """As if it had stood still until its lease ended, and another had come."""
    with pytest.raises(StaleEpochError, match="taken over"):
        async with managing(tmp_path / "runs") as served:
            records = served.manager.records
            lease = await records.store.holder(LEASE)
            assert lease
            await records.store.release(lease)
            newer = await records.store.acquire(LEASE, "newer", 60.0)
            assert newer
            with pytest.raises(StaleEpochError):
                await create(served, tmp_path)
            assert records.all() == []
            assert (await Records.load(records.store, newer)).all() == []
            await asyncio.sleep(RENEW_SECONDS + 0.5)


async def test_limits_of_an_owner(tmp_path: Path) -> None:
    limits = {"runs": 1, "priority": 5, "devices": 3}
    async with managing(tmp_path / "runs", limits=limits) as served:
        run_id = await create(served, tmp_path)
        with pytest.raises(LimitError, match="min_replicas: 3 need 4 devices"):
            await served.runs.scale(ANN, run_id, 3, 3)
        with pytest.raises(LimitError):
            await create(served, tmp_path, "2")
        with pytest.raises(LimitError):
            await served.runs.check(ANN, specification(tmp_path))
        await served.runs.check(BOB, specification(tmp_path))
        with pytest.raises(InputError, match="priority"):
            await served.runs.create(BOB, "3", specification(tmp_path), (), 6)
        for bad in ("", "x" * 129, "a\nb"):
            with pytest.raises(InputError, match="request_id"):
                await served.runs.create(BOB, bad, specification(tmp_path), (), 0)


async def test_runs_that_are_resumed_at_once_stay_within_the_limit(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs", limits={"runs": 2}) as served:
        all_devices = specification(tmp_path, rollout={"tensor_parallel": 7})
        other = await served.runs.create(BOB, "other", all_devices)
        await until(lambda: state_of(served, other.run_id) is RunState.STARTING)
        ended: list[str] = []
        for number in range(4):
            ended.append(await create(served, tmp_path, str(number)))
            cancelled = await served.runs.cancel(ANN, ended[-1])
            assert cancelled.state is RunState.CANCELLED
        again = [served.runs.resume(ANN, run_id) for run_id in ended]
        answers = await asyncio.gather(*again, return_exceptions=True)
        assert [isinstance(answer, LimitError) for answer in answers].count(True) == 2, answers


async def test_a_disk_that_hangs_under_a_model_holds_up_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, answers = threading.Event(), threading.Event()

    def hangs(*_: object) -> None:
        reads.set()
        assert answers.wait(DEADLINE), "nobody else was answered meanwhile"

    monkeypatch.setattr("services.manager.runs.check_memory", hangs)
    async with managing(tmp_path / "runs") as served:
        creating = asyncio.create_task(create(served, tmp_path))
        await until(reads.is_set)
        assert await served.runs.list(BOB) == ([], "")
        answers.set()
        assert await creating


async def test_a_run_that_has_ended_is_resumed_within_the_limits_of_now_and_a_paused_one_goes_on(
    tmp_path: Path,
) -> None:
    launcher = FakeLauncher(dies_at_once=True)
    async with managing(tmp_path / "runs", launcher) as served:
        failed = await create(served, tmp_path, "1", run={"steps": 30})
        await until(lambda: state_of(served, failed) is RunState.FAILED)
        launcher.dies_at_once = False
        await create(served, tmp_path, "2", rollout={"tensor_parallel": 7})
        paused = await create(served, tmp_path, "3", run={"steps": 30})
        assert (await served.runs.pause(ANN, paused)).state is RunState.PAUSED
    async with managing(tmp_path / "runs", FakeLauncher(), limits={"steps": 10}) as served:
        with pytest.raises(LimitError, match="^run.steps: 30 is more than this owner's steps, 10"):
            await served.runs.resume(ANN, failed)
        assert state_of(served, failed) is RunState.FAILED
        assert (await served.runs.resume(ANN, paused)).state is not RunState.PAUSED


async def test_an_owner_keeps_so_many_runs(tmp_path: Path) -> None:
    launcher = FakeLauncher(dies_at_once=True)
    async with managing(tmp_path / "runs", launcher, limits={"kept": 1}) as served:
        first = await create(served, tmp_path)
        await until(lambda: state_of(served, first) is RunState.FAILED)
        with pytest.raises(LimitError, match="ann keeps 1 runs, ended ones as well"):
            await create(served, tmp_path, "2")
        await served.runs.delete(ANN, first)
        await create(served, tmp_path, "2")


async def test_replicas_that_the_hosts_memory_does_not_bear_are_refused(tmp_path: Path) -> None:
    limits = {"host_memory_gib": 12.5}  # of which reward workers may take eight
    async with managing(tmp_path / "runs", limits=limits) as served:
        run_id = await create(served, tmp_path)
        assert (await served.runs.scale(ANN, run_id, 1, 4)).replicas.max == 4
        with pytest.raises(LimitError, match=r"^max_replicas: 5 need 13\.\d+ GiB"):
            await served.runs.scale(ANN, run_id, 1, 5)


async def test_followed_logs_and_verified_ledgers_count_as_watching(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher, limits={"watchers": 1}) as served:
        run_id = await create(served, tmp_path)
        await until(lambda: bool(launcher.events))
        (tmp_path / "runs" / run_id / "logs" / "launcher.log").write_text("one\n")
        followed = served.runs.logs(ANN, run_id, "launcher", follow=True)
        await anext(followed)
        with pytest.raises(LimitError, match="watchers of ann: 1 at a time"):
            await anext(served.runs.logs(ANN, run_id, "launcher", follow=True))
        with pytest.raises(LimitError, match="watchers of ann: 1 at a time"):
            await served.runs.ledger_verify(ANN, run_id)
        assert (await anext(served.runs.logs(ANN, run_id, "launcher"))).lines == ["one"]
        others = served.runs.logs(OLGA, run_id, "launcher", follow=True)
        assert (await anext(others)).lines == ["one"]
        await others.aclose()
        await followed.aclose()
        assert (await served.runs.ledger_verify(ANN, run_id)).sound


async def test_a_client_has_one_ledger_verified_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    may_end = asyncio.Event()

    async def verify(store: object, run: Managed) -> LedgerAnswer:
        begun.append(run.owner)
        await may_end.wait()
        return LedgerAnswer((), {})

    monkeypatch.setattr("services.manager.reading.verify", verify)
    async with managing(tmp_path / "runs") as served:
        run_id = await create(served, tmp_path)
        asked = [
            asyncio.create_task(served.runs.ledger_verify(client, run_id))
            for client in (ANN, ANN, OLGA)
        ]
        await until(lambda: len(begun) == 2)  # of ann one, and the operator's
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert len(begun) == 2
        may_end.set()
        await asyncio.gather(*asked)
        assert len(begun) == 3


async def test_logs_and_checkpoints(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        await until(lambda: bool(launcher.events))
        folder = tmp_path / "runs" / run_id
        token = (folder / "token").read_text().strip()
        log = folder / "logs" / "rollout-0.log"
        log.write_text(f"one\ntoken {token} shown\nredis://u:pass@h/0\nhalf")
        parts = served.runs.logs(ANN, run_id, "rollout-0", 10, follow=True)
        first = await anext(parts)
        assert first.lines == ["one", "token *** shown", "redis://u:***@h/0"]
        log.open("a").write(" line\n")
        assert (await anext(parts)).lines == ["half line"]
        await parts.aclose()
        again = served.runs.logs(ANN, run_id, "rollout-0", follow=True, after=first.position)
        assert (await anext(again)).lines == ["half line"], "as a client that comes back asks"
        log.open("a").write("next\n")
        assert (await anext(again)).lines == ["next"]
        await again.aclose()
        assert "rollout-0" in await served.runs.log_names(ANN, run_id)
        with pytest.raises(NotFoundError, match="rollout-0"):
            await anext(served.runs.logs(ANN, run_id, "../token"))
        saved = folder / "checkpoints" / "step-00010"
        saved.mkdir(parents=True)
        (saved / "state.json").write_text(json.dumps({"step": 10, "root": "5f0c"}))
        async with processes_of(launcher.contexts[run_id]) as processes:
            for step, root in ((7, "02d7"), (10, "older")):
                value = {"path": f"step-{step:05}", "root": root}
                await processes.store.put(checkpoint_key(run_id, step), value)
        kept = [(c.step, c.root, c.kept) for c in await served.runs.checkpoints(ANN, run_id)]
        assert kept == [(7, "02d7", False), (10, "5f0c", True)]


async def test_a_creation_that_is_refused_while_the_loop_waits_for_it_ends_no_loop(
    tmp_path: Path,
) -> None:
    async with managing(tmp_path / "runs") as served:
        store: Any = served.manager.records.store
        put_fenced, refuse = store.put_fenced, asyncio.Event()

        async def refused(*arguments: Any) -> None:
            store.put_fenced = put_fenced
            await refuse.wait()
            raise StateError("refused")

        store.put_fenced = refused
        creating = asyncio.create_task(create(served, tmp_path))
        await until(lambda: served.manager.records.all())
        [run] = served.manager.records.all()
        planned = asyncio.create_task(served.manager._change_if_queued(run.run_id, waiting_for="x"))
        await asyncio.sleep(0.05)  # it waits for the run's lock
        refuse.set()
        with pytest.raises(StateError):
            await creating
        await planned
        assert served.manager.records.all() == []


async def test_a_folder_that_the_machine_cannot_make_yet_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, make, left = FakeLauncher(), Path.mkdir, 5

    def mkdir(path: Path, *arguments: Any, **options: Any) -> None:
        nonlocal left
        if left and path.parent == tmp_path / "runs":
            left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        make(path, *arguments, **options)

    async with managing(tmp_path / "runs", launcher) as served:
        monkeypatch.setattr(Path, "mkdir", mkdir)
        run_id = await create(served, tmp_path)
        await until(lambda: launcher.there.get(run_id) is Presence.THERE)
    assert left == 0


async def test_a_launcher_that_the_machine_cannot_start_yet_has_not_died(tmp_path: Path) -> None:
    class Starved(FakeLauncher):
        left = 2 * FAST.max_deaths

        async def start(self, run: RunContext, secrets: Mapping[str, str]) -> None:
            if self.left:
                self.left -= 1
                raise UnavailableError("no launcher can be started (Too many open files)")
            await super().start(run, secrets)

    launcher = Starved()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        await until(lambda: launcher.there.get(run_id) is Presence.THERE)
        assert served.manager.records.get(run_id).deaths == 0


async def test_a_run_that_waits_holds_no_store_open(tmp_path: Path) -> None:
    async with managing(tmp_path / "runs") as served:
        served.manager.stores._idle_seconds = 1e9
        for number in range(9):
            await create(served, tmp_path, str(number))
        runs = served.manager.records.all()
        queued = {run.store_url for run in runs if run.state is RunState.QUEUED}
        assert queued
        await until(lambda: not queued & served.manager.stores._shared.keys())
