"""A page of curves over a run of 100,000 steps: from its file, and from the events that a store keeps.

The server is the one of `trimaran view`, asked in its own process. Meanwhile a clock ticks every
millisecond: what it is late is for how long the event loop was held.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.control.watchers import VALUES
from benchmarks.results_file import Row
from services.controller.reporting.events import KEPT_EVENTS
from services.manager.http.app import make_app
from services.manager.viewing.serve import reading
from tests.manager.viewing.folders import config_of, make_run
from trimaran.run.runs import EventKind, Run, RunEvent, RunState, event_to_tree, events_stream
from trimaran.store import open_store
from trimaran.telemetry.exposition import Exposition
from trimaran.telemetry.run_files import METRICS_NAME
from trimaran.trust.access import LOCAL

ROWS = b'"tables"'
"""An answer has them once all is read."""
WARM = 20
GOAL_SECONDS, GOAL_MIB, GOAL_HELD_SECONDS = 0.2, 2.0, 0.02


def measure_curves(work: Path, quick: bool) -> tuple[list[Row], str]:
    steps = 5_000 if quick else 100_000
    config = config_of(work)
    run = make_run(work / "runs" / "of-file", config)
    _write_file(run.folder / METRICS_NAME, steps)
    other = make_run(work / "runs" / "of-events", config)
    asyncio.run(_write_events(other.run_id, other.store_url, min(steps, KEPT_EVENTS)))
    rows = asyncio.run(_measure(work / "runs", (run.run_id, other.run_id)))
    method = (
        f"a run of {steps} steps with {len(VALUES)} metrics each; of the other one the store has"
        f" {min(steps, KEPT_EVENTS)} events. The server answers in the process that asks"
    )
    return rows, method


async def _measure(folder: Path, runs: tuple[str, str]) -> list[Row]:
    rows: list[Row] = []
    async with _asking(folder) as client:
        for name, run_id in zip(("file", "events"), runs, strict=True):
            address = f"/runs/{run_id}/series"
            late: list[float] = []
            clock = asyncio.create_task(_tick(late))
            began = time.perf_counter()
            while ROWS not in (first := await client.get(address)).content:
                first.raise_for_status()
            cold = time.perf_counter() - began
            warm = [await _seconds(client, address) for _ in range(WARM)]
            clock.cancel()
            page = await client.get(f"/runs/{run_id}")
            mib = (len(first.content) + len(page.content)) / (1 << 20)
            since = first.json()["since"]
            live = [await _seconds(client, address, since=since) for _ in range(WARM)]
            rows += [
                Row(f"{name}: {what}", value, unit, goal, higher_is_better=False)
                for what, value, unit, goal in (
                    ("read for the first time", cold, "s", None),
                    ("answer, median", float(np.median(warm)), "s", GOAL_SECONDS),
                    ("answer to a page that has it, median", float(np.median(live)), "s", None),
                    ("page with its rows", mib, "MiB", GOAL_MIB),
                    (
                        "event loop held, 99th percentile",
                        float(np.quantile(late, 0.99)),
                        "s",
                        GOAL_HELD_SECONDS,
                    ),
                    ("event loop held, worst", max(late), "s", None),
                )
            ]
    return rows


@asynccontextmanager
async def _asking(folder: Path) -> AsyncGenerator[httpx.AsyncClient]:
    async with reading(folder) as (reader, _):
        app = make_app(reader, lambda method, token: LOCAL, Exposition(), is_read_only=True)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:7990"
        ) as client:
            yield client


async def _seconds(client: httpx.AsyncClient, address: str, **query: Any) -> float:
    began = time.perf_counter()
    (await client.get(address, params=query)).raise_for_status()
    return time.perf_counter() - began


async def _tick(late: list[float], seconds: float = 0.001) -> None:
    while True:
        began = time.perf_counter()
        await asyncio.sleep(seconds)
        late.append(time.perf_counter() - began - seconds)


def _write_file(path: Path, steps: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            row = {"kind": "step", "step": step, "time": 1.7e9 + step, **VALUES}
            file.write(json.dumps(row) + "\n")


async def _write_events(run_id: str, url: str, steps: int) -> None:
    store = await open_store(url)
    for first in range(1, steps + 1, 1000):
        runs = [Run(run_id, RunState.RUNNING, step, steps) for step in range(first, first + 1000)]
        trees = [event_to_tree(RunEvent(0, EventKind.STEP, run, VALUES, "", 1.7e9)) for run in runs]
        await store.extend(events_stream(run_id), trees)
    await store.close()
