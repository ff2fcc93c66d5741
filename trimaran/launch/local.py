"""Processes on this machine: start them, notice when one dies, end all of them.

A dead rollout replica, reward or weight-sync service is started again: the run goes on with what
it has, or waits. Every other death ends the run.

Each service leads its own process group, so Ctrl-C reaches only the launcher and what a service
started can be ended with it. When the launcher itself is killed, the kernel tells the services,
and a guardian ends what is left of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path

from trimaran.config import RunConfig
from trimaran.errors import TrimaranError
from trimaran.launch import guardian
from trimaran.launch.devices import Placement
from trimaran.launch.environment import process_name, serve_command, service_environment
from trimaran.launch.lifetime import PARENT_VARIABLE, kill_group
from trimaran.launch.restarts import Restarts

KILLED_SECONDS = 15.0
"""For a process to be gone that was killed, or that has nothing left to do."""
ORPHAN_SECONDS = 5.0
"""For the services' own orderly end after the launcher was killed."""
SETTLE_SECONDS = 1.0
"""After a death: time for the others that it takes down, so that the first cause is found."""
NUM_LAST_LINES = 20
LONGEST_LINE = 400


@dataclass(frozen=True, slots=True)
class StopTimes:
    """Seconds between SIGTERM and SIGKILL.

    Example: Processes(services, StopTimes(running=60))
    """

    leader: float = 5.0
    """The controller ends first, so that the services do not look to it as if they failed."""
    running: float = 15.0
    """All others, once the run is under way."""
    loading: float = 3.0
    """All others before that: there is nothing to save, and a process that loads a model is deaf."""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """One process of a run.

    Example: ServiceProcess("reward", ("trimaran", "serve", ...), os.environ, Path("logs/reward.log"))
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    leads: bool = False
    """The run ends well when this one ends with 0."""
    revived: bool = False
    """Once the run is running, it outlives this one, which is started again."""
    expendable: bool = False
    """When it dies again and again, the run goes on without it while another such lives."""


class ServiceDiedError(TrimaranError):
    """A service ended that should not have; the text holds its own last lines."""

    def __init__(self, text: str, exit_code: int, started: bool) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        """2 when the service said that what the user gave is wrong, else 1."""
        self.started = started
        """The run was already running, so there is something to resume."""


@dataclass(frozen=True, slots=True)
class _Exit:
    service: ServiceProcess
    code: int
    lived_seconds: float


class Processes:
    """Starts services as processes of this machine and ends all of them.

    Example:
        async with Processes(run_services(config, config_path, folder, placement)) as processes:
            await processes.wait(print)
    """

    def __init__(
        self,
        services: Sequence[ServiceProcess],
        stop_times: StopTimes = StopTimes(),
        restarts: Callable[[], Restarts] = Restarts,
    ) -> None:
        """`restarts` makes what decides when one service is started again."""
        self._services, self._stop_times = services, stop_times
        self._alive: dict[str, asyncio.subprocess.Process] = {}
        self._log_starts: dict[str, int] = {}
        self._exits: asyncio.Queue[_Exit] = asyncio.Queue()
        self._watchers: list[asyncio.Task[None]] = []
        self._restarts: defaultdict[str, Restarts] = defaultdict(restarts)
        self._revivals: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._guardian: asyncio.subprocess.Process | None = None
        self.running = False
        """Set it once the run is under way: from then on an expendable service may die."""

    async def __aenter__(self) -> Processes:
        try:
            await self._start_guardian()
            for service in self._services:
                await self._start(service)
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def wait(self, note: Callable[[str], None]) -> None:
        """Returns when the leader ended well. Raises ServiceDiedError.

        `note` is told, in one line each, of deaths that the run survives and of what follows.
        """
        while True:
            ended = await self._exits.get()
            if ended.service.leads and ended.code == 0:
                return
            if not self._revive(ended, note):
                raise self._died(await self._first_cause(ended))

    async def stop(self) -> None:
        """Ends every process: SIGTERM, a deadline, SIGKILL to what is left of its group."""
        self._stopping.set()
        if self._revivals:  # they end now: nothing may start behind our back
            await asyncio.wait(self._revivals)
        leaders = [service.name for service in self._services if service.leads]
        try:
            times = self._stop_times
            await self._end(leaders, times.leader)
            await self._end(list(self._alive), times.running if self.running else times.loading)
        finally:
            self.kill()
            if self._watchers:
                await asyncio.wait(self._watchers, timeout=KILLED_SECONDS)
            if self._guardian:
                await _stop_guardian(self._guardian)

    def kill(self) -> None:
        """SIGKILL to everything that is left, now."""
        for process in self._alive.values():
            kill_group(process.pid)

    async def _start_guardian(self) -> None:
        self._guardian = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", guardian.__file__, str(ORPHAN_SECONDS)),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )

    def _tell_guardian(self, sign: str, group: int) -> None:
        assert self._guardian and self._guardian.stdin
        self._guardian.stdin.write(f"{sign}{group}\n".encode())

    async def _start(self, service: ServiceProcess) -> None:
        with service.log.open("ab") as log:
            self._log_starts[service.name] = log.tell()
            process = await asyncio.create_subprocess_exec(
                *service.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**service.environment, PARENT_VARIABLE: str(os.getpid())},
                start_new_session=True,
            )
        self._tell_guardian("+", process.pid)
        self._alive[service.name] = process
        self._watchers.append(asyncio.create_task(self._watch(service, process)))

    def _revive(self, ended: _Exit, note: Callable[[str], None]) -> bool:
        """False when the run cannot outlive this death."""
        service, how = ended.service, _how(ended.code)
        if not (self.running and service.revived) or ended.code == 2:
            return False
        restarts = self._restarts[service.name]
        pause = restarts.next_pause(ended.lived_seconds)
        if pause is not None:
            note(f"{service.name} died ({how}); the run starts it again in {pause:g} s")
            task = asyncio.create_task(self._start_after(service, pause, note))
            self._revivals.add(task)
            task.add_done_callback(self._revivals.discard)
            return True
        others = (s for s in self._services if s.expendable and s.name in self._alive)
        if not service.expendable or not any(others):
            return False
        note(
            f"{service.name} died ({how}), {restarts.num_in_a_row} times in a row; it is not"
            f" started again and the run goes on without it; see {service.log}"
        )
        return True

    async def _start_after(
        self, service: ServiceProcess, pause: float, note: Callable[[str], None]
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stopping.wait()
        if self._stopping.is_set():
            return
        try:
            await self._start(service)
        except OSError as error:
            note(f"{service.name} cannot be started again ({error})")
        else:
            note(f"{service.name} is started again")

    async def _watch(self, service: ServiceProcess, process: asyncio.subprocess.Process) -> None:
        began = time.monotonic()
        code = await process.wait()
        kill_group(process.pid)  # what the service itself started and did not end
        self._tell_guardian("-", process.pid)
        del self._alive[service.name]
        self._exits.put_nowait(_Exit(service, code, time.monotonic() - began))

    async def _end(self, names: Sequence[str], seconds: float) -> None:
        processes = [self._alive[name] for name in names if name in self._alive]
        for process in processes:
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                process.send_signal(signal.SIGTERM)
        waits = [asyncio.ensure_future(process.wait()) for process in processes]
        if waits:
            await asyncio.wait(waits, timeout=seconds)

    async def _first_cause(self, first: _Exit) -> _Exit:
        """Of the deaths close together: wrong input before all, the leader's last."""
        await asyncio.sleep(SETTLE_SECONDS)
        exits = [first]
        while not self._exits.empty():
            exits.append(self._exits.get_nowait())
        return min(exits, key=lambda ended: (ended.code != 2, ended.service.leads))

    def _died(self, ended: _Exit) -> ServiceDiedError:
        service = ended.service
        when = "died" if self.running else "died at start"
        lines = self._last_lines(service)
        if ended.code == 2:  # it has said what is wrong: what stands before that only distracts
            lines = [*dropwhile(lambda line: not line.startswith("error: "), lines)] or lines
        text = "\n".join(
            [
                f"{service.name} {when} ({_how(ended.code)}). Its last lines:",
                *(f"  {line}" for line in lines or ["(it wrote nothing)"]),
                f"its whole log: {service.log}",
            ]
        )
        return ServiceDiedError(text, 2 if ended.code == 2 else 1, self.running)

    def _last_lines(self, service: ServiceProcess) -> list[str]:
        with service.log.open("rb") as log:
            log.seek(self._log_starts[service.name])
            text = log.read().decode(errors="replace")
        lines = [line.rstrip()[:LONGEST_LINE] for line in text.splitlines() if line.strip()]
        return lines[-NUM_LAST_LINES:]


def run_services(
    config: RunConfig, config_path: Path, folder: Path, placement: Placement
) -> list[ServiceProcess]:
    """Every service of a run, as processes of this machine."""

    def service(kind: str, index: int = 0) -> ServiceProcess:
        name = process_name(kind, index)
        return ServiceProcess(
            name=name,
            command=serve_command(kind, str(config_path), str(folder), index),
            environment=service_environment(config, kind, os.environ)
            | placement.variables(kind, index),
            log=folder / "logs" / f"{name}.log",
            leads=kind == "controller",
            revived=kind in ("rollout", "reward", "weight-sync"),
            expendable=kind == "rollout",
        )

    return [
        service("reward"),
        service("weight-sync"),
        *(service("trainer", rank) for rank in range(config.num_trainer_ranks)),
        *(service("rollout", replica) for replica in range(config.rollout.replicas)),
        service("controller"),
    ]


async def _stop_guardian(process: asyncio.subprocess.Process) -> None:
    assert process.stdin
    process.stdin.close()  # it knows of no group any more, so it ends by itself
    try:
        async with asyncio.timeout(KILLED_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
