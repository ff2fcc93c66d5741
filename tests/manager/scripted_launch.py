"""`python -m tests.manager.scripted_launch launch RUN_FOLDER`: says in a run's store what a launcher and its processes would.

It takes the lease and trains steps that take no time, until it is told to stop. A process of its own
stands for the services; it ends a moment after the launcher, as the real ones do.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from trimaran.run.context import RunContext
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, event_to_tree, run_to_tree
from trimaran.store import open_store

SERVICE = """
import os, sys, time
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.05)
time.sleep(float(sys.argv[2]))
"""
LINGER_SECONDS = 0.5
ENDS = {"pause": RunState.PAUSED, "cancel": RunState.CANCELLED}


async def main(folder: Path) -> None:
    run = RunContext.in_folder(folder)
    store = await open_store(run.store_url)
    lease = await store.acquire(f"launcher/{run.run_id}", f"process {os.getpid()}", 2.0)
    assert lease, "another launcher has this run"
    subprocess.Popen([sys.executable, "-c", SERVICE, str(os.getpid()), str(LINGER_SECONDS)])
    record = await store.get(f"run/{run.run_id}")
    step = record.value["step"] if record else 0
    while True:
        goal = await store.get(f"goal/{run.run_id}")
        wanted = goal.value["goal"] if goal else "run"
        state = ENDS.get(wanted, RunState.RUNNING)
        if wanted == "run":
            step += 1
        told = Run(run.run_id, state, step, 1_000_000)
        await store.put(f"run/{run.run_id}", run_to_tree(told))
        kind = EventKind.FINISHED if state.has_ended else EventKind.STEP
        event = RunEvent(0, kind, told, {"pid": os.getpid()}, "", time.time())
        await store.extend(f"events/{run.run_id}", [event_to_tree(event)])
        if wanted != "run":
            return
        await store.renew(lease, 2.0)
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[2])))
