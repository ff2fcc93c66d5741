"""Launchers are found from the moment on at which they are started."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import threading
import time
from pathlib import Path

import pytest

from trimaran.errors import UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.launchers import MARK, LocalLauncher, Presence, _marked


async def test_a_child_is_there_until_it_has_ended_whatever_proc_shows(tmp_path: Path) -> None:
    launcher = LocalLauncher(os.environ, lambda run: ("/usr/bin/env", "-i", "sleep", "60"))
    run = RunContext("r", tmp_path, "sqlite:unused")
    await launcher.start(run, {})
    assert await launcher.find([run]) == {"r": Presence.THERE}
    await asyncio.sleep(0.2)  # by now its environment is empty for good
    assert await launcher.find([run]) == {"r": Presence.THERE}
    await launcher.kill(run)
    await until_gone(launcher, run)


async def until_gone(launcher: LocalLauncher, run: RunContext) -> None:
    async with asyncio.timeout(30):
        while (await launcher.find([run]))["r"] is not Presence.GONE:
            await asyncio.sleep(0.01)


async def test_a_launcher_of_an_earlier_manager_is_found_and_ended(tmp_path: Path) -> None:
    words = sys.executable, "-Sc", "import time; time.sleep(60)", "launch", str(tmp_path)
    earlier, later = (LocalLauncher(os.environ, lambda run: words) for _ in range(2))
    run = RunContext("r", tmp_path, "sqlite:unused")
    await earlier.start(run, {})
    assert await later.find([run]) == {"r": Presence.THERE}
    await later.kill(run)
    await until_gone(earlier, run)


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
