"""A launcher in a process of its own: `launcher.py FOLDER NAME=WHAT …`, the first one leads."""

import asyncio
import signal
import sys
from pathlib import Path

from commands.launch.local.local_children import LocalChildren
from commands.launch.processes import Processes
from commands.launch.service_process import StopTimes
from tests.launch.services import make_services


async def main(folder: Path, services: list[str]) -> None:
    made = make_services(folder, dict(s.split("=") for s in services))
    times = StopTimes(leader=1.0, running=1.0, loading=1.0)
    async with Processes(made, times, children=LocalChildren(orphan_seconds=1.0)) as processes:
        await processes.wait(print)


# A job in a shell's background inherits that it ignores Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
