"""A thousand people watch one run, over gRPC and over server-sent events, and one of them is slow.

The manager is real and alone in its process; only the run's processes are fakes: this process writes
the run's events into its store, as a controller does, and reads them again as every watcher. The
slow watcher asks for the run's whole past and reads nothing until the end. Each watcher has a
connection of its own. What is late includes this process, which reads for all of them on one core.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
import psutil

from benchmarks.results_file import Row
from tests.manager.fakes import FakeLauncher, FakeProcesses, managing, specification, until
from trimaran.run.context import RunContext
from trimaran.run.runs import EventKind, Run, RunState
from trimaran.store import open_store
from trimaran.telemetry.metrics import METRICS
from trimaran.trust.access import LOCAL
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire.rpc import OPTIONS

NUM_PAST = 1500
"""Steps that were trained before the watchers came; they fill what buffers there are on the way to
the slow one."""
SECONDS_PER_EVENT = 2.0
START_SECONDS, LAST_SECONDS = 120.0, 60.0
VALUES = {metric.key: 0.123456789 for metric in METRICS if "<" not in metric.key}
GOAL_LATE_SECONDS = 1.0
MIB = 1 << 20


class Watch(Protocol):
    """Gives each event's number, and its time in unix seconds."""

    def __call__(
        self, place: dict[str, str], after: int
    ) -> AsyncGenerator[tuple[int, float], None]: ...


def measure_watchers(work: Path, quick: bool) -> tuple[list[Row], str]:
    count, events = (100, 5) if quick else (1000, 20)
    rows: list[Row] = []
    for name, watch in (("gRPC", _watch_grpc), ("server-sent events", _watch_http)):
        folder = work / name.replace(" ", "-")
        folder.mkdir()
        with _manager(folder) as (process, place):
            rows += asyncio.run(_measure(name, watch, process, place, count, events))
    method = (
        f"{count} watchers and a slow one on one run, an event with {len(VALUES)} metrics every"
        f" {SECONDS_PER_EVENT:g} s, {NUM_PAST} events in the past; manager and watchers in a process"
        " each, on one machine"
    )
    return rows, method


async def _measure(
    name: str,
    watch: Watch,
    manager: psutil.Process,
    place: dict[str, str],
    count: int,
    num_events: int,
) -> list[Row]:
    store = await open_store(place["store"])
    run = Run(place["run"], RunState.RUNNING, 0, NUM_PAST + num_events)
    processes = FakeProcesses(store, RunContext(run.run_id, Path(), place["store"]))
    for step in range(NUM_PAST):
        await processes.emit(EventKind.STEP, _at(run, step), **VALUES)
    past = await store.last(f"events/{run.run_id}")
    before = manager.memory_info().rss
    slow = watch(place, 0)
    await anext(slow)
    arrived = [asyncio.Event() for _ in range(count)]
    late: list[list[float]] = [[] for _ in range(count)]

    async def follow(index: int) -> None:
        events = watch(place, past)
        number = past
        async for sequence, sent in events:
            assert sequence == number + 1, (index, number, sequence)
            number = sequence
            late[index].append(time.time() - sent)
            arrived[index].set()
            if number == past + num_events:
                break
        await events.aclose()

    tasks = [asyncio.create_task(follow(index)) for index in range(count)]
    started = time.monotonic()
    await processes.emit(EventKind.STEP, _at(run, NUM_PAST), **VALUES)  # they connect meanwhile
    async with asyncio.timeout(START_SECONDS):
        await asyncio.gather(*(one.wait() for one in arrived))
    connecting = time.monotonic() - started
    for step in range(1, num_events):
        await asyncio.sleep(SECONDS_PER_EVENT)
        await processes.emit(EventKind.STEP, _at(run, NUM_PAST + step), **VALUES)
    during = manager.memory_info().rss
    async with asyncio.timeout(LAST_SECONDS):
        await asyncio.gather(*tasks)
    lateness = np.array([each[1:] for each in late])  # the first came while they connected
    caught_up = 1
    async with asyncio.timeout(LAST_SECONDS):
        async for sequence, _ in slow:
            caught_up += 1
            if sequence == past + num_events:
                break
    await slow.aclose()
    await store.close()
    assert caught_up == past + num_events, caught_up
    figures = (
        ("late, median", float(np.median(lateness)), "s", None),
        ("late, 99th percentile", float(np.quantile(lateness, 0.99)), "s", GOAL_LATE_SECONDS),
        ("late, worst", float(lateness.max()), "s", None),
        ("until all had connected", connecting, "s", None),
        ("memory of a watcher", (during - before) / (count + 1) / 1024, "KiB", None),
        ("memory of the manager", during / MIB, "MiB", None),
    )
    return [
        Row(f"{name}, {count} watchers: {what}", value, unit, goal, higher_is_better=False)
        for what, value, unit, goal in figures
    ]


def _at(run: Run, step: int) -> Run:
    return Run(run.run_id, run.state, step, run.num_steps)


async def _watch_grpc(place: dict[str, str], after: int) -> AsyncGenerator[tuple[int, float], None]:
    options = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(place["grpc"], options=options) as channel:
        stub: Any = run_pb2_grpc.RunServiceStub(channel)
        request = run_pb2.WatchRunRequest(run_id=place["run"], after_sequence=after)
        async for response in stub.WatchRun(request):
            yield response.event.sequence, response.event.time


async def _watch_http(place: dict[str, str], after: int) -> AsyncGenerator[tuple[int, float], None]:
    host, _, port = place["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    path = f"/v1/runs/{place['run']}/events?after={after}"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {place['http']}\r\n\r\n".encode())
    try:
        number = 0
        while line := await reader.readline():
            if line.startswith(b"id: "):
                number = int(line[4:])
            elif line.startswith(b"data: ") and (found := re.search(rb'"time":([\d.]+)[,}]', line)):
                yield number, float(found[1])
    finally:
        writer.close()


@contextmanager
def _manager(folder: Path) -> Generator[tuple[psutil.Process, dict[str, str]]]:
    command = [sys.executable, "-m", "benchmarks.control.watchers", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    try:
        assert process.stdout
        yield psutil.Process(process.pid), json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.wait(30)


async def _serve(folder: Path) -> None:
    """A manager with one run, until it is killed."""
    launcher = FakeLauncher()
    limits = {"watchers": 10_000}
    async with managing(folder / "runs", launcher, limits=limits) as served:
        run = await served.runs.create(LOCAL, "one", specification(folder), (), 0)
        await until(lambda: launcher.contexts.get(run.run_id))
        place = {
            "run": run.run_id,
            "grpc": served.address,
            "http": served.http_address,
            "store": launcher.contexts[run.run_id].store_url,
        }
        print(json.dumps(place), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
