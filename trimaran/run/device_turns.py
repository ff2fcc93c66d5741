"""Whose turn it is on the devices that the trainer and the rollout share (`run.pools: colocated`).

    turn = DeviceTurn(run.folder, (0, 1), "rollout-0")   # a replica over the first two of the run's devices
    await turn.take(60.0)                          # no trainer rank has memory there from here on
    turn.release()

Each of the shared devices is a file in the run's folder, and who has memory on the device keeps that
file locked (flock). The kernel takes the lock from a process that ends, however it ends: so no process has
to find out that a turn is over, and no turn outlives its holder.

A replica takes all its devices or none. So it never keeps some while it waits for the others, and two
who wait for each other cannot be.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Sequence
from pathlib import Path

from trimaran.config import RunConfig
from trimaran.errors import DeadlineError
from trimaran.host.file_lock import try_lock
from trimaran.run.context import RunContext

FOLDER = "turns"
POLL_SECONDS = 0.05


class DeviceTurn:
    """The locks of some devices, all of them or none. Not for two tasks at a time."""

    def __init__(self, folder: Path, devices: Sequence[int], holder: str) -> None:
        """`devices`: by their places among those that the pools share. `holder`: who is named to those
        who wait. Make it before child processes are forked: while they live, they hold what it holds."""
        self._holder = holder
        (folder / FOLDER).mkdir(exist_ok=True)
        paths = [folder / FOLDER / f"device-{device}" for device in devices]
        self._files = [os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC) for path in paths]
        self._paths = paths
        self.is_taken = False

    async def take(self, timeout: float) -> None:
        """Nothing where it is taken already. Raises DeadlineError naming the holder after `timeout`
        seconds."""
        deadline = time.monotonic() + timeout
        while not self.is_taken and (taken := self._try()):
            if time.monotonic() >= deadline:
                other = taken.read_text().strip() or "another process"
                raise DeadlineError(
                    f"{self._holder}: the devices were not free within {timeout:g} s; {taken.name} is in"
                    f" use by {other}; see its log (run.pools: colocated)"
                )
            await asyncio.sleep(POLL_SECONDS)

    def _try(self) -> Path | None:
        """The first of the devices that another process has; with all of them ours, None."""
        for number, (file, path) in enumerate(zip(self._files, self._paths, strict=True)):
            if not try_lock(file, path):
                self._unlock(self._files[:number])
                return path
        for file in self._files:
            os.truncate(file, 0)
            os.pwrite(file, self._holder.encode(), 0)
        self.is_taken = True
        return None

    def release(self) -> None:
        """Once nothing of this process is left on the devices but what it never gives up."""
        self.is_taken = False
        self._unlock(self._files)

    def _unlock(self, files: Sequence[int]) -> None:
        for file in files:
            fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def trainer_turn(config: RunConfig, run: RunContext, rank: int) -> DeviceTurn | None:
    """None in separate pools."""
    return _turn(config, run, "trainer", rank)


def rollout_turn(config: RunConfig, run: RunContext, replica: int) -> DeviceTurn | None:
    """None in separate pools."""
    return _turn(config, run, "rollout", replica)


def waits_for_turn(config: RunConfig, run: RunContext, name: str) -> bool:
    """Whether another process has one of the devices of the process `name` ("rollout-1") now."""
    kind, _, index = name.rpartition("-")
    if not config.is_colocated or kind not in ("trainer", "rollout"):
        return False
    paths = (run.folder / FOLDER / f"device-{n}" for n in _devices(config, kind, int(index)))
    return any(_holder(path) not in ("", name) for path in paths)


def _turn(config: RunConfig, run: RunContext, kind: str, index: int) -> DeviceTurn | None:
    if not config.is_colocated:
        return None
    return DeviceTurn(run.folder, _devices(config, kind, index), f"{kind}-{index}")


def _devices(config: RunConfig, kind: str, index: int) -> range:
    size = 1 if kind == "trainer" else config.rollout.tensor_parallel
    return range(index * size, (index + 1) * size)


def _holder(path: Path) -> str:
    """The holder of a device; empty where it is free. Who tries to take it at this moment tries again."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        return "" if try_lock(file, path, fcntl.LOCK_SH) else path.read_text().strip()
    finally:
        os.close(file)
