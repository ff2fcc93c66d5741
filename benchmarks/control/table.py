"""The page of runs, by the number of runs that there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np

from benchmarks.results_file import Row
from services.manager.http.app import make_app
from services.manager.reading import RunReader
from services.manager.records import Managed
from services.manager.run_data.run_stores import RunStores
from services.manager.scheduling.pools import Need
from trimaran.run.runs import RunState
from trimaran.telemetry.exposition import Exposition
from trimaran.trust.access import LOCAL

COUNTS = (1_000, 10_000)
REPEATS = 15
GOAL_MS, GOAL_MIB = 200.0, 2.0


class _Known:
    """`KnownRuns` in memory."""

    troubles: dict[str, str] = {}  # noqa: RUF012  never written

    def __init__(self, count: int) -> None:
        states = [state for state in RunState if state is not RunState.UNKNOWN]
        self._runs = [_run(number, states[number % len(states)]) for number in range(count)]

    def get(self, run_id: str) -> Managed:
        return next(run for run in self._runs if run.run_id == run_id)

    def all(self) -> Sequence[Managed]:
        return self._runs


def measure_table(work: Path, quick: bool) -> tuple[list[Row], str]:
    rows = [row for count in COUNTS[: 1 if quick else None] for row in asyncio.run(_measure(count))]
    return rows, f"median of {REPEATS} answers; the server answers in the process that asks"


async def _measure(count: int) -> list[Row]:
    stores = RunStores()
    app = make_app(RunReader(_Known(count), stores, 1), lambda *_: LOCAL, Exposition())
    pages = {"the first 200": "/runs?sort=-reward", "1,000 rows": "/runs?rows=1000"}
    rows: list[Row] = []
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7980") as client:
        for name, address in pages.items():
            seconds: list[float] = []
            answer = await client.get(address)
            for _ in range(REPEATS):
                began = time.perf_counter()
                answer = (await client.get(address)).raise_for_status()
                seconds.append(time.perf_counter() - began)
            of = f"{count:,} runs, {name}"
            took, mib = 1e3 * float(np.median(seconds)), len(answer.content) / (1 << 20)
            goal = GOAL_MS if count == COUNTS[0] else None
            rows.append(Row(f"{of}: answer, median", took, "ms", goal, higher_is_better=False))
            rows.append(Row(f"{of}: size", mib, "MiB", GOAL_MIB, higher_is_better=False))
    await stores.close()
    return rows


def _run(number: int, state: RunState) -> Managed:
    need, why = Need("cuda", 1), "pool gpu: 2 of 8 devices are free, and 4 are needed"
    return Managed(
        *(f"qwen25-7b-gsm8k-20261128-{number:06}", "qwen25-7b-gsm8k", f"team-{number % 9}"),
        *(str(number), number % 3, 1.7e9 + number, f"/data/runs/{number}", "", {}, 400),
        *(need, need, 1, 4, 1.7e9),
        state=state,
        step=number % 400,
        reward=number % 97 / 97,
        error=why if state is RunState.FAILED else "",
        waiting_for=why if state is RunState.QUEUED else "",
    )
