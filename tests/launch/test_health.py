"""Frozen processes: alive, and silent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial
from pathlib import Path

from tests.launch.services import STAND_IN, is_alive, pid_of
from trimaran.launch.endpoints import free_address
from trimaran.launch.health import HealthWatch
from trimaran.launch.local import Processes, ServiceProcess, StopTimes
from trimaran.launch.restarts import Restarts
from trimaran.trust import NO_TRUST

TIMES = StopTimes(leader=0.5, running=1.0, loading=0.5)
SERVING = Path(__file__).with_name("serving.py")


def make(folder: Path, name: str, script: Path, *arguments: str, address: str) -> ServiceProcess:
    return ServiceProcess(
        name=name,
        command=(sys.executable, str(script), *arguments, str(folder / name)),
        environment={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        log=folder / f"{name}.log",
        address=address,
    )


def test_who_has_answered_and_is_silent_is_killed_and_who_still_loads_is_not(
    tmp_path: Path,
) -> None:
    first, second = free_address(set()), free_address(set())
    services = [
        make(tmp_path, "reward", SERVING, first, address=first),
        make(tmp_path, "trainer-0", STAND_IN, "run", address=second),  # never answers: it loads
    ]
    notes: list[str] = []

    async def run() -> None:
        restarts = partial(Restarts, first_pause=0.01)
        async with Processes(services, TIMES, restarts) as processes:
            processes.running = True
            watch = HealthWatch(processes, 1.0, notes.append, NO_TRUST, pause=0.1)
            tasks = [
                asyncio.create_task(watch.run()),
                asyncio.create_task(processes.wait(notes.append)),
            ]
            frozen, loading = [await asyncio.to_thread(pid_of, tmp_path / s.name) for s in services]
            await asyncio.sleep(0.5)
            (tmp_path / "reward").unlink()
            os.kill(frozen, signal.SIGSTOP)
            again = await asyncio.to_thread(pid_of, tmp_path / "reward")
            assert again != frozen and not is_alive(frozen)
            assert pid_of(tmp_path / "trainer-0") == loading and is_alive(loading)
            await asyncio.sleep(1.5)
            assert pid_of(tmp_path / "reward") == again and is_alive(again)
            for task in tasks:
                task.cancel()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert notes[0].startswith("reward is frozen: it has not answered for ")
    assert "frozen_timeout is 1 s" in notes[0]
    assert notes[1].startswith("reward died (killed by SIGKILL); the run starts it again")
    assert len(notes) == 3


def test_a_launcher_that_stood_still_blames_nobody(tmp_path: Path) -> None:
    address = free_address(set())
    service = make(tmp_path, "reward", SERVING, address, address=address)
    notes: list[str] = []

    async def run() -> None:
        async with Processes([service], TIMES) as processes:
            watch = HealthWatch(processes, 1.0, notes.append, NO_TRUST, pause=0.1)
            task = asyncio.create_task(watch.run())
            await asyncio.to_thread(pid_of, tmp_path / "reward")
            await asyncio.sleep(0.5)
            stand_still(2.0)
            await asyncio.sleep(0.5)
            task.cancel()
            assert set(processes.alive) == {"reward"}

    asyncio.run(asyncio.wait_for(run(), 60))
    assert not notes


def stand_still(seconds: float) -> None:
    """The event loop with it, as a stopped process does."""
    import time

    time.sleep(seconds)
