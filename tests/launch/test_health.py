"""Frozen processes: alive, and silent."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from commands.launch.health import HealthWatch
from commands.launch.processes import Processes
from commands.launch.restarts import Restarts
from commands.launch.service_process import ServiceProcess, StopTimes
from tests.launch.services import STAND_IN, is_alive, make_services, pid_of
from trimaran.run.network import LOOPBACK
from trimaran.trust.access import NO_TRUST, Trust

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


@asynccontextmanager
async def watching(
    services: Sequence[ServiceProcess],
    notes: list[str],
    frozen_timeout: float,
    start_timeout: float = 60.0,
) -> AsyncGenerator[None]:
    """Those that die are started again."""
    restarts = partial(Restarts, first_pause=0.01)
    async with Processes(services, TIMES, restarts) as processes:
        processes.running = True
        timeouts = frozen_timeout, start_timeout
        watch = HealthWatch(processes, *timeouts, notes.append, NO_TRUST, pause=0.1)
        tasks = [asyncio.create_task(life) for life in (watch.run(), processes.wait(notes.append))]
        yield
        for task in tasks:
            task.cancel()


async def test_who_has_answered_and_is_silent_is_killed_and_who_still_loads_is_not(
    tmp_path: Path,
) -> None:
    first, second = LOOPBACK.free_address(), LOOPBACK.free_address()
    services = [
        make(tmp_path, "reward", SERVING, first, address=first),
        make(tmp_path, "trainer-0", STAND_IN, "run", address=second),  # never answers: it loads
    ]
    notes: list[str] = []
    async with watching(services, notes, 3.0):
        frozen, loading = [await asyncio.to_thread(pid_of, tmp_path / s.name) for s in services]
        await asyncio.sleep(0.5)
        (tmp_path / "reward").unlink()
        os.kill(frozen, signal.SIGSTOP)
        again = await asyncio.to_thread(pid_of, tmp_path / "reward")
        assert again != frozen and not is_alive(frozen)
        assert pid_of(tmp_path / "trainer-0") == loading and is_alive(loading)
        await asyncio.sleep(4.0)
        assert pid_of(tmp_path / "reward") == again and is_alive(again)
    assert notes[0].startswith("reward is frozen: it has not answered for ")
    assert "frozen_timeout is 3 s" in notes[0]
    assert notes[1].startswith("reward died (killed by SIGKILL); the run starts it again")
    assert len(notes) == 3


async def test_a_launcher_that_stood_still_blames_no_process(tmp_path: Path) -> None:
    """It could hear no answer meanwhile."""
    [service] = make_services(tmp_path, {"reward": "run"})
    notes: list[str] = []
    asked: list[float] = []

    async def ask(address: str, timeout: float, trust: Trust) -> bool:
        asked.append(timeout)
        if len(asked) == 2:
            stand_still(3.0)
        return len(asked) != 2

    async with Processes([replace(service, address="127.0.0.1:1")], TIMES) as processes:
        watch = HealthWatch(processes, 1.0, 60.0, notes.append, NO_TRUST, pause=0.1, ask=ask)
        task = asyncio.create_task(watch.run())
        while len(asked) < 5:
            await asyncio.sleep(0.05)
        task.cancel()
        assert set(processes.alive) == {"reward"}
    assert not notes


@pytest.mark.parametrize(("is_stopped", "start_timeout"), [(True, 60.0), (False, 1.0)])
async def test_who_is_frozen_before_its_first_answer_is_killed_too(
    is_stopped: bool, start_timeout: float, tmp_path: Path
) -> None:
    """At once when it is stopped; else, as a deadlock is, when its time to start has passed."""
    service = make(tmp_path, "trainer-0", STAND_IN, "run", address=LOOPBACK.free_address())
    notes: list[str] = []
    async with watching([service], notes, 1.0, start_timeout):
        first = await asyncio.to_thread(pid_of, tmp_path / "trainer-0")
        (tmp_path / "trainer-0").unlink()
        if is_stopped:
            os.kill(first, signal.SIGSTOP)
        again = await asyncio.to_thread(pid_of, tmp_path / "trainer-0")
        assert again != first and not is_alive(first)
    assert notes[0].startswith("trainer-0 is frozen: it has not answered for ")


async def test_a_launcher_that_stands_still_now_and_then_finds_a_frozen_process_all_the_same(
    tmp_path: Path,
) -> None:
    """As on a machine that is too busy: each round takes longer than it should."""
    address = LOOPBACK.free_address()
    service = make(tmp_path, "reward", SERVING, address, address=address)
    notes: list[str] = []

    async with Processes([service], TIMES) as processes:
        watch = HealthWatch(processes, 1.0, 60.0, notes.append, NO_TRUST, pause=0.1)
        task = asyncio.create_task(watch.run())
        frozen = await asyncio.to_thread(pid_of, tmp_path / "reward")
        await asyncio.sleep(0.5)
        os.kill(frozen, signal.SIGSTOP)
        while is_alive(frozen):
            stand_still(0.8)
            await asyncio.sleep(0.15)
        task.cancel()
    assert notes and notes[0].startswith("reward is frozen")


def stand_still(seconds: float) -> None:
    """The event loop with it, as a stopped process does."""
    time.sleep(seconds)


@dataclass
class AskedToEnd:
    """A process elsewhere, which can only be asked to end."""

    service: ServiceProcess
    address: str
    incarnation: str = "a"
    began: float = field(default_factory=time.monotonic)

    def is_stopped(self) -> bool:
        return False


class Elsewhere:
    """In the place of `Processes`."""

    def __init__(self, child: AskedToEnd) -> None:
        self.alive, self.killed = {"trainer-0": child}, list[str]()

    def kill(self, name: str) -> None:
        self.killed.append(name)


def watched(child: AskedToEnd, start_timeout: float, seconds: float) -> Elsewhere:
    """Nothing answers. It says after a moment where it listens."""
    processes = Elsewhere(child)

    async def silent(address: str, timeout: float, trust: Trust) -> bool:
        return False

    async def run() -> None:
        watch = HealthWatch(
            cast(Processes, processes),
            *(0.5, start_timeout, lambda note: None, NO_TRUST),
            pause=0.1,
            ask=silent,
        )
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.3)
        child.address = "10.0.0.7:1"
        await asyncio.sleep(seconds)
        task.cancel()

    asyncio.run(run())
    return processes


def test_who_has_not_said_where_it_listens_has_not_answered(tmp_path: Path) -> None:
    [service] = make_services(tmp_path, {"trainer-0": "run"})
    assert watched(AskedToEnd(service, ""), 60.0, 1.5).killed == []


def test_who_can_only_be_asked_to_end_is_asked_once_in_its_time(tmp_path: Path) -> None:
    [service] = make_services(tmp_path, {"trainer-0": "run"})
    killed = watched(AskedToEnd(service, ""), 0.1, 2.0).killed
    assert 1 <= len(killed) <= 5, "not at each look, of which there were some twenty"


def test_a_replica_that_froze_before_it_was_asked_for_its_health_is_ended_where_it_is_overdue(
    tmp_path: Path,
) -> None:
    """It listens; one that only starts does not."""
    [service] = make_services(tmp_path, {"trainer-0": "run"})
    notes: list[str] = []

    async def end_overdue(address: str) -> list[str]:
        processes = Elsewhere(AskedToEnd(service, address))
        watch = HealthWatch(cast(Processes, processes), 60.0, 60.0, notes.append, NO_TRUST)
        await watch.end_overdue("trainer-0", "does not sleep")
        return processes.killed

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert asyncio.run(end_overdue(address)) == ["trainer-0"]
    for nowhere in (address, ""):
        assert asyncio.run(end_overdue(nowhere)) == []
    assert notes == ["trainer-0 does not sleep; it is ended, and the trainer goes on"]
