"""What systemd hears of a process: that it is ready, and that its event loop turns."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from trimaran.host.watchdog import watched


@pytest.fixture(params=["a file", "an abstract name"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify") if request.param == "a file" else "")
        listener.settimeout(30)
        yield listener


def environment(systemd: socket.socket, **more: str) -> dict[str, str]:
    name = systemd.getsockname()
    address = name if isinstance(name, str) else f"@{name[1:].decode()}"
    return {"NOTIFY_SOCKET": address, "HOME": "/root", **more}


def heard(systemd: socket.socket) -> list[str]:
    """Up to the last word, as lines."""
    lines: list[str] = []
    while "STOPPING=1" not in lines:
        lines += systemd.recv(4096).decode().split("\n")
    return lines


async def live(given: dict[str, str], seconds: float, is_stuck: bool = False) -> None:
    async with watched(given):
        await asyncio.sleep(0)
        time.sleep(seconds) if is_stuck else await asyncio.sleep(seconds)


def test_it_is_ready_and_then_lives_until_it_stops(systemd: socket.socket) -> None:
    given = environment(systemd, WATCHDOG_USEC="60000", WATCHDOG_PID=str(os.getpid()))
    asyncio.run(live(given, 0.1))  # the kernel keeps ten notices that nothing reads
    first, *signs, last = heard(systemd)
    assert (first, last) == ("READY=1", "STOPPING=1")
    assert set(signs) == {"WATCHDOG=1"} and len(signs) > 1
    assert given == {"HOME": "/root"}  # its children are not who is watched


def test_an_event_loop_that_is_stuck_gives_no_sign(systemd: socket.socket) -> None:
    given = environment(systemd, WATCHDOG_USEC="60000")
    asyncio.run(live(given, 0.5, is_stuck=True))
    assert heard(systemd).count("WATCHDOG=1") == 1


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "60000", "WATCHDOG_PID": "1"}])
def test_who_is_not_watched_gives_no_sign(systemd: socket.socket, more: dict[str, str]) -> None:
    asyncio.run(live(environment(systemd, **more), 0.2))
    assert heard(systemd) == ["READY=1", "STOPPING=1"]


def test_without_systemd_nothing_is_said() -> None:
    asyncio.run(live({"WATCHDOG_USEC": "60000"}, 0.1))


async def test_who_does_not_listen_is_not_waited_for(systemd: socket.socket) -> None:
    """Its queue is full after some notices; then it is gone."""
    given = environment(systemd, WATCHDOG_USEC="100")
    async with watched(given):
        await asyncio.sleep(0.5)
        systemd.close()
        await asyncio.sleep(0.1)
