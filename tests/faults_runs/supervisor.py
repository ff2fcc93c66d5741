"""Who starts the manager again, as systemd does with `deploy/systemd/trimaran.service`."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

WATCHDOG_SECONDS = 8.0
"""WatchdogSec=."""
START_SECONDS = 30.0
"""TimeoutStartSec=. A new manager waits 12 s for the lease of the one before it."""
READ_SECONDS = 0.5


class Supervisor:
    """Kills a manager that is silent, and starts another.

    Example:
        supervisor = Supervisor(kill, start)
        subprocess.Popen(command, env={**os.environ, **supervisor.environment})
        supervisor.expect()
    """

    def __init__(self, kill: Callable[[], None], start: Callable[[], None]) -> None:
        self._kill, self._start = kill, start
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind("")  # a free abstract name, which nothing has to remove
        self._is_ready, self._silence = False, 0.0
        self._watching: asyncio.Task[None] | None = None

    @property
    def environment(self) -> dict[str, str]:
        name = self._socket.getsockname()[1:].decode()
        return {"NOTIFY_SOCKET": f"@{name}", "WATCHDOG_USEC": str(round(WATCHDOG_SECONDS * 1e6))}

    @property
    def patience(self) -> float:
        """Seconds of silence after which it is killed."""
        return WATCHDOG_SECONDS if self._is_ready else START_SECONDS

    def expect(self) -> None:
        """A new manager has been started."""
        self._is_ready, self._silence = False, 0.0
        self._watching = self._watching or asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    text = await asyncio.get_running_loop().sock_recv(self._socket, 4096)
            except TimeoutError:
                self._silence += READ_SECONDS  # and no more, where this process stood still itself
            else:
                self._silence = 0.0
                self._is_ready |= b"READY=1" in text
            if self._silence > self.patience:
                self._kill()
                self._start()

    async def close(self) -> None:
        if self._watching:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        self._socket.close()
