"""What runs on a node beside one service process: starts it, watches it, and takes it along.

`RayChildren` makes a Ray actor of `Supervisor`. The service is a child process that ends with the
actor, however that one ends. The actor ends itself when it was not asked for
`lapse_seconds`: then its launcher is gone, or cannot reach this node.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands.launch.local.local_children import LocalChildren
from commands.launch.long_logs import shorten_logs
from commands.launch.service_process import Exit, ServiceProcess
from trimaran.host.device import VISIBLE_DEVICES, Kind
from trimaran.run.placement import PLACED
from trimaran.run.ray.cluster import RAY_NAMES, assigned_devices, own_node
from trimaran.trust.access import write_private

LAPSE_SECONDS = 30.0
WATCH_SECONDS = 1.0
LOG_BYTES = 1 << 16
"""The most bytes of a log in one answer."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be started.

    Example: Order("reward", ("-m", "commands.cli", "serve", "reward", ...), "/runs/demo-1")
    """

    name: str
    arguments: tuple[str, ...]
    """Arguments of Python."""
    folder: str
    """The run's folder, on each host that serves it."""
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """What lies in it for the service, with secrets: only this user may read them."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Variables of its environment beside this node's own."""
    device: Kind = "cpu"
    mark: str = ""
    """A file in the launcher's folder: where it is seen, the folder is shared."""
    unless_shared: str = ""
    """Why it cannot be started on a host that does not see the folder."""


@dataclass(frozen=True, slots=True)
class SupervisorReport:
    """How a service stands."""

    pid: int
    """0: it has ended."""
    code: int | None
    """How it ended by itself; None while it lives, or where it was asked to end."""
    is_stopped: bool
    log: bytes
    """What it has written behind the position that was asked about."""
    position: int
    """Behind that."""


class Supervisor:
    """Supervises one service process.

    Example:
        supervisor = Supervisor()
        supervisor.start({"name": "reward", "arguments": ("reward.py",), "folder": "/runs/demo-1"})
        supervisor.report(position=0)["pid"]
    """

    def __init__(
        self,
        lapse_seconds: float = LAPSE_SECONDS,
        find_devices: Callable[[Kind], tuple[str, ...]] | None = None,
        leave: Callable[[], None] | None = None,
    ) -> None:
        """`find_devices`: the ids that Ray has given, of a kind of device. `leave` ends this
        process."""
        self._lapse_seconds = lapse_seconds
        self._find_devices = find_devices or given_devices
        self._leave = leave or (lambda: os._exit(0))
        self._children = LocalChildren()
        self._service: ServiceProcess | None = None
        self._exit: Exit | None = None
        self._shares_log = False
        self._asked = time.monotonic()
        self._loop = asyncio.new_event_loop()
        # The service ends with the thread that has started it: this one lives as long as we do.
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._do(self._children.open())
        asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    def start(self, order: Mapping[str, Any]) -> None:
        """`order`: the fields of an `Order`. Raises OSError where it cannot be started."""
        given = Order(**order)
        folder = Path(given.folder)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "logs").mkdir(exist_ok=True, mode=0o700)
        self._shares_log = bool(given.mark) and (folder / given.mark).exists()
        if given.unless_shared and not self._shares_log:
            raise OSError(given.unless_shared)
        for name, text in given.files.items() if not self._shares_log else ():
            write_private(folder / name, text)
        self._service = ServiceProcess(
            given.name,
            (sys.executable, *given.arguments),
            {**os.environ, **given.variables, **self._placed(given)},
            folder / "logs" / f"{given.name}.log",
        )
        self._do(self._children.start(self._service))

    def node(self) -> str:
        """Its id."""
        return own_node()

    def report(self, position: int) -> dict[str, Any]:
        """The fields of a `SupervisorReport`; its log behind `position`, or from this start on where it is
        negative. Of a log that the launcher sees itself, nothing."""
        self._asked = time.monotonic()
        assert self._service, "nothing was started"
        child = self._children.alive.get(self._service.name)
        if child is None and self._exit is None and not self._children.exits.empty():
            self._exit = self._children.exits.get_nowait()
        if position < 0:
            position = child.log_start if child else self._exit.log_start if self._exit else 0
        position, log = (position, b"") if self._shares_log else self._read(position)
        return {
            "pid": child.process.pid if child else 0,
            "code": self._exit.code if self._exit else None,
            "is_stopped": child is not None and child.is_stopped(),
            "log": log,
            "position": position + len(log),
        }

    def end(self, seconds: float) -> None:
        """Asks it for an orderly end, and kills what is left of it after `seconds`. Returns at
        once."""
        if self._service:
            ending = self._children.end([self._service.name], seconds)
            asyncio.run_coroutine_threadsafe(ending, self._loop)

    def kill(self) -> None:
        """It counts as a death of its own."""
        self._loop.call_soon_threadsafe(self._children.kill_all)

    def close(self) -> None:
        """Ends what is left. Returns when it is gone."""
        self._do(self._children.close())

    def _placed(self, order: Order) -> dict[str, str]:
        placed = {PLACED: order.name}
        if order.device == "cpu":
            return placed
        devices = self._find_devices(order.device)
        return placed | {VISIBLE_DEVICES[order.device]: ",".join(devices)}

    def _read(self, position: int) -> tuple[int, bytes]:
        """Where it was read: at the start where the log was shortened."""
        assert self._service
        with self._service.log.open("rb") as log:
            position = log.seek(position if position <= log.seek(0, os.SEEK_END) else 0)
            return position, log.read(LOG_BYTES)

    async def _watch(self) -> None:
        while time.monotonic() - self._asked < self._lapse_seconds:
            await asyncio.sleep(WATCH_SECONDS)
            if self._service and not self._shares_log:  # which the launcher does
                await asyncio.to_thread(shorten_logs, self._service.log.parent)
        if self._service:
            await self._children.end([self._service.name], WATCH_SECONDS)
        await self._children.close()
        self._leave()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()


def given_devices(kind: Kind) -> tuple[str, ...]:
    """What Ray has given to the actor in which this runs; ascending, as the NPU runtime wants
    them. Raises OSError where it has given none."""
    name = RAY_NAMES[kind]
    if not (devices := assigned_devices(name)):
        raise OSError(f"Ray has given no {name} to this process")
    return tuple(sorted(devices, key=lambda device: (len(device), device)))
