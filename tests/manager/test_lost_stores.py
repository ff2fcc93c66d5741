"""A run whose own store is damaged or full, beside others that go on."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from services.manager.run_data.run_stores import RunStores
from services.manager.run_data.tails import Tails, watch
from services.manager.serve import Serving
from tests.manager.fakes import DEADLINE, FAST, FakeLauncher, FakeProcesses, managing, until
from tests.manager.test_runs import ANN, create, started, state_of
from tests.tiny_disk import disk, empty, fill
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, event_to_tree
from trimaran.store import Store, StoreError, open_store


async def damage(served: Serving, run_id: str) -> None:
    """While nobody has it open: what was cached of it is forgotten."""
    store = Path(served.manager.records.get(run_id).folder) / "store.sqlite"
    await served.manager.stores.forget(f"sqlite:{store}")
    for name in ("-wal", "-shm"):
        Path(f"{store}{name}").unlink(missing_ok=True)
    store.write_bytes(b"garbage " * 1000)


async def pause(served: Serving, processes: FakeProcesses, launcher: FakeLauncher) -> None:
    run_id = processes.run.run_id
    await served.runs.pause(ANN, run_id)
    await processes.report(RunState.PAUSED, step=3)
    await processes.store.close()
    launcher.there.pop(run_id)
    await until(lambda: state_of(served, run_id) is RunState.PAUSED)


async def test_it_fails_frees_its_devices_and_goes_on_with_a_copy(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id = await create(served, tmp_path)
        await pause(served, await started(served, launcher, run_id), launcher)
        folder = tmp_path / "runs" / run_id
        await served.manager.stores.forget(f"sqlite:{folder / 'store.sqlite'}")
        shutil.copy(folder / "store.sqlite", tmp_path / "copy")
        await damage(served, run_id)
        assert (await served.runs.resume(ANN, run_id)).state is RunState.QUEUED
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        run = await served.runs.get(ANN, run_id)
        assert run.error.startswith("store.sqlite: ")
        assert run.remedy == f"bring back a copy of the store, then trimaran resume {run_id}"
        assert not served.manager.records.get(run_id).grant.devices
        assert launcher.events == [f"start {run_id}"]
        shutil.copy(tmp_path / "copy", folder / "store.sqlite")
        await served.runs.resume(ANN, run_id)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING, step=4)
        await until(lambda: state_of(served, run_id) is RunState.RUNNING)
        await processes.store.close()


async def test_the_processes_of_a_running_one_are_killed_first(tmp_path: Path) -> None:
    launcher = FakeLauncher()
    async with managing(tmp_path / "runs", launcher) as served:
        run_id, other = await create(served, tmp_path), await create(served, tmp_path, "other")
        processes = await started(served, launcher, run_id)
        sound = await started(served, launcher, other)
        await processes.store.close()
        await damage(served, run_id)
        await until(lambda: state_of(served, run_id) is RunState.FAILED)
        assert [event for event in launcher.events if "kill" in event] == [f"kill {run_id}"]
        await sound.report(RunState.RUNNING)
        await until(lambda: state_of(served, other) is RunState.RUNNING)
        await sound.store.close()


async def test_its_watchers_are_told(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:{tmp_path / 'store.sqlite'}")
    event = RunEvent(0, EventKind.STEP, Run("r", RunState.RUNNING, 1, 2), {}, "", 0.0)
    await store.extend("events/r", [event_to_tree(event)])

    class Stores:
        left = 10
        """Uses until it is lost: by then the tail has the event."""

        @asynccontextmanager
        async def of(self, url: str) -> AsyncGenerator[Store]:
            if not self.left:
                raise StoreError("the store has gone back")
            self.left -= 1
            yield store

    stores, seen = Stores(), list[int]()
    tails = Tails(cast(RunStores, stores), poll=0.02)
    async with asyncio.timeout(60):
        with pytest.raises(StoreError, match="gone back"):
            async for found in watch(tails, "r", "u", 0, lambda: False):
                assert isinstance(found, RunEvent)
                seen.append(found.sequence)
    assert seen == [1]
    assert not tails.num_watchers
    stores.left = 10
    async for _ in watch(tails, "r", "u", 0, lambda: True):
        seen.append(0)
    assert seen == [1, 0], "a new watcher starts from the beginning"
    await store.close()


__all__ = ["disk"]


async def test_a_run_whose_store_is_full_is_told_as_held_and_left_alone(
    tmp_path: Path, disk: Path
) -> None:
    """Its launcher cannot renew its lease then. That is no sign of a frozen one, nor afterwards."""
    launcher, times = FakeLauncher(), replace(FAST, first_lease=0.0, lapse=3.0)
    async with managing(disk / "runs", launcher, times) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING, step=7)
        await until(lambda: served.manager.records.get(run_id).step == 7)
        assert processes.lease and (await served.runs.get(ANN, run_id)).held == ""
        await processes.store.renew(processes.lease, 0.01)
        fill(disk)
        await until(lambda: served.manager.troubles)
        for _ in range(60):  # longer than a launcher may be without a lease
            [listed], _ = await served.runs.list(ANN)
            for run in (await served.runs.get(ANN, run_id), listed):
                assert run.state is RunState.RUNNING
                assert f"{run_id}/store.sqlite: its disk is full; make room" in run.held
            await asyncio.sleep(0.1)
        # Its time begins now. It takes a busy machine long to renew the lease.
        served.manager._times = replace(times, lapse=DEADLINE)
        empty(disk)
        await until(lambda: run_id in served.manager._lapsed)
        await processes.store.renew(processes.lease, 60.0)
        await until(lambda: not served.manager.troubles and run_id not in served.manager._lapsed)
        assert (await served.runs.get(ANN, run_id)).held == ""
        assert launcher.events == [f"start {run_id}"]
