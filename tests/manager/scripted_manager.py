"""`python -m tests.manager.scripted_manager FOLDER [STORE]`: a manager whose launchers are scripted; it prints its address."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from services.manager.reconcile import Times
from services.manager.serve import serving
from services.manager.settings import ManagerSettings
from tests.manager import scripted_launch
from trimaran.run.context import RunContext
from trimaran.run.launchers import LocalLauncher


def command(run: RunContext) -> tuple[str, ...]:
    return sys.executable, "-m", scripted_launch.__name__, "launch", str(run.folder)


async def main(folder: Path, store: str = "") -> None:
    settings = ManagerSettings.model_validate(
        {
            "folder": folder,
            "store": store,
            "address": "127.0.0.1:0",
            "http_address": "127.0.0.1:0",
            "pools": {"cpu": {"device": "cpu", "slots": 8}},
        }
    )
    launcher = LocalLauncher(os.environ, command)
    times = Times(first_lease=10.0, first_pause=0.2)
    async with serving(settings, launcher, times) as served:
        print(served.address, flush=True)
        await served.manager.run()


if __name__ == "__main__":
    # A shell starts what runs in its background with SIGINT ignored, and asyncio leaves that as it is.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
