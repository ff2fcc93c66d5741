"""Launchers are found from the moment on at which they are started."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from trimaran.errors import UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.launchers import MARK, LocalLauncher, Presence, _marked

NUM_STARTS = 100


def context(folder: Path, name: str = "r") -> RunContext:
    (folder / name / "logs").mkdir(parents=True)
    return RunContext(name, folder / name, "sqlite:unused")


def test_a_launcher_is_there_as_soon_as_it_was_started(tmp_path: Path) -> None:
    """The kernel fills in what /proc shows of it only afterwards."""

    def command(run: RunContext) -> Sequence[str]:
        return sys.executable, "-Sc", "import time; time.sleep(60)", "launch", str(run.folder)

    async def scenario() -> list[Presence]:
        launcher = LocalLauncher(os.environ, lambda run: tuple(command(run)))
        found: list[Presence] = []
        for number in range(NUM_STARTS):
            run = context(tmp_path, str(number))
            await launcher.start(run, {})
            found += (await launcher.find([run])).values()
            await launcher.kill(run)
        return found

    assert asyncio.run(scenario()) == [Presence.THERE] * NUM_STARTS


async def test_a_child_is_there_until_it_has_ended_whatever_proc_shows(tmp_path: Path) -> None:
    launcher = LocalLauncher(os.environ, lambda run: ("/usr/bin/env", "-i", "sleep", "60"))
    run = context(tmp_path)
    await launcher.start(run, {})
    await asyncio.sleep(0.2)  # by now its environment is empty for good
    assert await launcher.find([run]) == {"r": Presence.THERE}
    await launcher.kill(run)
    async with asyncio.timeout(30):
        while (await launcher.find([run]))["r"] is not Presence.GONE:
            await asyncio.sleep(0.01)


def process(proc: Path, number: int, state: str = "R", flags: int = 0) -> Path:
    """As /proc shows one that was just executed: nothing but its numbers."""
    folder = proc / str(number)
    folder.mkdir()
    for name in ("environ", "cmdline"):
        (folder / name).write_bytes(b"")
    (folder / "stat").write_text(f"{number} (a) b) {state} 1 1 1 0 -1 {flags} 0 0\n")
    return folder


def fill(folder: Path, run_folder: str) -> None:
    (folder / "cmdline").write_bytes(f"python\0launch\0{run_folder}\0".encode())
    (folder / "environ").write_bytes(f"A=b\0{MARK}={run_folder}\0".encode())


def test_a_process_that_is_being_executed_is_looked_at_again(tmp_path: Path) -> None:
    """A new manager looks just when the one before it has started a launcher."""
    young = process(tmp_path, 7)
    part = tmp_path / "part"
    part.mkdir()
    fill(process(part, 7), "/runs/a")

    def show() -> None:  # the environment last, each file at once
        for name in ("cmdline", "environ"):
            (part / "7" / name).replace(young / name)

    timer = threading.Timer(0.1, show)
    timer.start()
    found = list(_marked(tmp_path, patience=30.0))
    timer.join()
    assert found == [(7, "/runs/a", True)]


def test_who_will_never_show_anything_is_not_waited_for(tmp_path: Path) -> None:
    process(tmp_path, 2, flags=0x00200000)  # a thread of the kernel
    process(tmp_path, 3, state="Z")
    process(tmp_path, 4, flags=0x4)  # it ends
    fill(process(tmp_path, 5), "/runs/a")
    began = time.monotonic()
    assert list(_marked(tmp_path, patience=600.0)) == [(5, "/runs/a", True)]
    assert time.monotonic() - began < 300


def test_one_that_hangs_as_it_is_executed_holds_nobody_up_for_long(tmp_path: Path) -> None:
    process(tmp_path, 6, state="D")
    fill(process(tmp_path, 7), "/runs/a")
    assert list(_marked(tmp_path, patience=0.05)) == [(7, "/runs/a", True)]


def test_who_cannot_look_does_not_say_that_anybody_is_gone(tmp_path: Path) -> None:
    """As where a process may open no more files: for a launcher that an earlier manager has started,
    /proc is all there is."""
    fill(process(tmp_path, 7), "/runs/a")
    (tmp_path / "7" / "cmdline").unlink()
    (tmp_path / "7" / "cmdline").symlink_to("cmdline")  # it cannot be opened, and is there
    with pytest.raises(OSError, match="symbolic links"):
        list(_marked(tmp_path))

    async def find_without_files() -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            await LocalLauncher({}).find([])
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    with pytest.raises(UnavailableError, match="launchers cannot be seen .*Too many open files"):
        asyncio.run(find_without_files())
