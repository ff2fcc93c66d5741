"""Reports to systemd that this process is ready, and that it lives: the protocol of sd_notify(3).

systemd starts a service with a socket's name in NOTIFY_SOCKET, and with WATCHDOG_USEC where the unit
has WatchdogSec=. A service that then is silent for so long is killed and started again.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, MutableMapping
from contextlib import asynccontextmanager, suppress

PER_DEADLINE = 3
"""Signs of life in the time after which silence means death."""
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@asynccontextmanager
async def watched(environment: MutableMapping[str, str] = os.environ) -> AsyncGenerator[None]:
    """Inside, systemd knows that we are ready, and hears from our event loop as long as it turns.

    Without systemd it does nothing. The variables are taken out: they do not speak of the processes
    that this one starts.

    Example:
        async with serving(settings) as served, watched():
            await served.manager.run()
    """
    address, microseconds, pid = (environment.pop(name, "") for name in VARIABLES)
    if not address:
        yield
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.setblocking(False)
        # "@" stands for the zero byte with which an abstract name begins.
        notices.connect("\0" + address[1:] if address.startswith("@") else address)
        _say(notices, "READY=1")
        is_watched = microseconds and pid in ("", str(os.getpid()))
        living = (
            asyncio.create_task(_live(notices, int(microseconds) / 1e6)) if is_watched else None
        )
        try:
            yield
        finally:
            if living:
                living.cancel()
            _say(notices, "STOPPING=1")


async def _live(notices: socket.socket, seconds: float) -> None:
    while True:
        _say(notices, "WATCHDOG=1")
        await asyncio.sleep(seconds / PER_DEADLINE)


def _say(notices: socket.socket, text: str) -> None:
    """Who does not listen any more, or has a full queue, is not waited for."""
    with suppress(OSError):
        notices.send(text.encode())
