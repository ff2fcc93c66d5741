"""Real processes: whatever ends the launcher, nothing is left running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launch.services import is_alive, make_services, pid_of, wait_until
from trimaran.launch import local
from trimaran.launch.local import Processes, ServiceDiedError


@pytest.fixture(autouse=True)
def short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LEADER_STOP_SECONDS", 1.0)
    monkeypatch.setattr(local, "STOP_SECONDS", 1.0)
    monkeypatch.setattr(local, "LOADING_STOP_SECONDS", 0.5)


def pids(folder: Path, names: Mapping[str, str]) -> list[int]:
    found = [pid_of(folder / name) for name in names]
    engines = [name for name, what in names.items() if what == "engine"]
    return found + [int((folder / f"{name}-child").read_text()) for name in engines]


async def until_up(folder: Path, names: Mapping[str, str]) -> list[int]:
    return await asyncio.to_thread(pids, folder, names)


def test_the_leaders_end_ends_all_also_the_deaf_and_what_they_started(tmp_path: Path) -> None:
    names = {"controller": "finish", "trainer-0": "deaf", "rollout-0": "engine"}

    async def run() -> list[int]:
        async with Processes(make_services(tmp_path, names)) as processes:
            found = await until_up(tmp_path, names)
            (tmp_path / "controller-may-finish").touch()
            await processes.wait(on_lost=pytest.fail)
        return found

    found = asyncio.run(run())
    assert len(found) == 4
    for pid in found:
        wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")


@pytest.mark.parametrize(("what", "code"), [("die3", 1), ("die2", 2), ("die0", 1)])
def test_a_death_at_start_ends_all_and_shows_its_last_lines(
    tmp_path: Path, what: str, code: int
) -> None:
    names = {"controller": "run", "trainer-0": what, "rollout-0": "run"}

    async def run() -> None:
        async with Processes(make_services(tmp_path, names)) as processes:
            await processes.wait(on_lost=pytest.fail)

    with pytest.raises(ServiceDiedError) as caught:
        asyncio.run(run())
    assert caught.value.exit_code == code
    assert not caught.value.started
    text = str(caught.value)
    assert text.startswith(f"trainer-0 died at start (exit code {what[-1]})")
    # Exit code 2 comes with a message of its own.
    assert ("first words" in text) == (code != 2)
    assert "error: the engine has no wings" in text
    assert str(tmp_path / "trainer-0.log") in text
    for name in ("controller", "rollout-0"):
        if (tmp_path / name).exists():
            assert not is_alive(pid_of(tmp_path / name))


def test_last_words_of_an_earlier_start_are_not_shown_again(tmp_path: Path) -> None:
    (tmp_path / "trainer-0.log").write_text("old news\n")

    async def run() -> None:
        async with Processes(make_services(tmp_path, {"trainer-0": "die1"})) as processes:
            await processes.wait(on_lost=pytest.fail)

    with pytest.raises(ServiceDiedError) as caught:
        asyncio.run(run())
    assert "first words" in str(caught.value)
    assert "old news" not in str(caught.value)


def test_a_replica_that_dies_in_mid_run_is_only_reported_while_another_lives(
    tmp_path: Path,
) -> None:
    names = {"controller": "run", "rollout-0": "engine", "rollout-1": "run"}
    lost: list[str] = []

    async def run() -> list[int]:
        async with Processes(make_services(tmp_path, names)) as processes:
            _, first, second, first_child = await until_up(tmp_path, names)
            processes.running = True
            waiting = asyncio.create_task(processes.wait(on_lost=lost.append))
            os.kill(first, signal.SIGKILL)
            while not lost:
                await asyncio.sleep(0.01)
            assert not waiting.done()
            os.kill(second, signal.SIGKILL)
            with pytest.raises(ServiceDiedError, match=r"^rollout-1 died \(killed by SIGKILL\)"):
                await waiting
            return [first_child]

    (child,) = asyncio.run(run())
    assert lost == ["rollout-0 died (killed by SIGKILL); the run goes on without it"]
    wait_until(lambda: not is_alive(child), "the dead replica's child to end")


def test_who_is_deaf_while_it_loads_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "STOP_SECONDS", 3600.0)

    async def run() -> list[int]:
        async with Processes(make_services(tmp_path, {"rollout-0": "deaf"})):
            return await until_up(tmp_path, {"rollout-0": "deaf"})

    (pid,) = asyncio.run(asyncio.wait_for(run(), 60))
    assert not is_alive(pid)


def test_a_trainers_death_in_mid_run_ends_the_run_which_can_be_resumed(tmp_path: Path) -> None:
    names = {"controller": "run", "trainer-0": "run"}

    async def run() -> None:
        async with Processes(make_services(tmp_path, names)) as processes:
            _, trainer = await until_up(tmp_path, names)
            processes.running = True
            os.kill(trainer, signal.SIGKILL)
            await processes.wait(on_lost=pytest.fail)

    with pytest.raises(ServiceDiedError, match="^trainer-0 died") as caught:
        asyncio.run(run())
    assert caught.value.started


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_launcher(tmp_path: Path, number: signal.Signals) -> None:
    names = {"controller": "run", "trainer-0": "deaf", "rollout-0": "engine"}
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.launch.launcher", str(tmp_path)),
            *(f"{name}={what}" for name, what in names.items()),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        found = pids(tmp_path, names)
        assert all(map(is_alive, found))
        launcher.send_signal(number)
        for pid in found:
            wait_until(lambda pid=pid: not is_alive(pid), f"{pid} to end")
    finally:
        launcher.kill()
        launcher.wait()
