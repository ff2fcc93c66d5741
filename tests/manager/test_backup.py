"""Back-up of a manager that goes on meanwhile, and its restore, as docs/operations.md tells it."""

from __future__ import annotations

import shutil
from pathlib import Path

from services.manager.records import LEASE
from tests.controller.test_backup import copy_store
from tests.manager.fakes import FakeLauncher, managing, processes_of, until
from tests.manager.test_runs import ANN, create, started, state_of
from trimaran.run.launchers import Presence
from trimaran.run.runs import RunState
from trimaran.store import open_store


def back_up(folder: Path, copy: Path) -> None:
    """The manager's store first: it then names no run that the copy has more of than it knows."""
    copy.mkdir()
    copy_store(folder / "manager.sqlite", copy / "manager.sqlite")
    for run in filter(Path.is_dir, folder.iterdir()):
        shutil.copytree(run, copy / run.name, ignore=shutil.ignore_patterns("store.sqlite*"))
        copy_store(run / "store.sqlite", copy / run.name / "store.sqlite")


async def end_lease(folder: Path) -> None:
    """The copy holds the lease of the manager that was at work. The next one waits the ten seconds
    until it ends; so long a test need not take."""
    store = await open_store(f"sqlite:{folder / 'manager.sqlite'}")
    lease = await store.holder(LEASE)
    assert lease
    await store.release(lease)
    await store.close()


async def test_a_restored_manager_has_its_runs_and_starts_them_again(tmp_path: Path) -> None:
    folder, launcher = tmp_path / "runs", FakeLauncher()
    async with managing(folder, launcher) as served:
        run_id = await create(served, tmp_path)
        processes = await started(served, launcher, run_id)
        await processes.report(RunState.RUNNING, step=3)
        await until(lambda: served.manager.records.get(run_id).step == 3)
        back_up(folder, tmp_path / "copy")
        await processes.report(RunState.SUCCEEDED, step=20)  # the copy knows nothing of it
        launcher.there[run_id] = Presence.GONE
        await until(lambda: state_of(served, run_id) is RunState.SUCCEEDED)
        await create(served, tmp_path, "later")
    shutil.move(folder, tmp_path / "lost")
    shutil.move(tmp_path / "copy", folder)
    await end_lease(folder)
    launcher = FakeLauncher()
    async with managing(folder, launcher) as served:
        assert [run.run_id for run in (await served.runs.list(ANN))[0]] == [run_id]
        await until(lambda: launcher.events == [f"start {run_id}"])
        async with processes_of(launcher.contexts[run_id]) as processes:
            await processes.take_lease()
            await processes.report(RunState.RUNNING, step=4)
            await until(lambda: served.manager.records.get(run_id).step == 4)
        events = [event async for event in served.runs.events(ANN, run_id, follow=False)]
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert {event.run.step for event in events} >= {3, 4}
        assert await create(served, tmp_path) == run_id, "its request id is known"
