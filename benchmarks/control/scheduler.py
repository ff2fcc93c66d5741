"""One decision of the scheduler, by the number of runs that wait.

512 devices of 64 hosts are full: each host has a run with five replicas beyond its least number. Those
who wait have the shapes, owners and priorities of a week (`tests/manager/simulation.py`), and each
came a little later. Long and short queues take turns, so that both meet the same machine.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from benchmarks.results_file import Row
from services.manager.scheduling.pools import DeviceRequest, Grant, Need, Pool, PoolDevice
from services.manager.scheduling.scheduler import DeviceHolding, Scheduler
from tests.manager.simulation import ask_of, week_of_arrivals

QUEUES = (10, 100, 1000)
GOAL_MS = 10.0
NOW = 8 * 86400.0


def measure_scheduler(work: Path, quick: bool) -> tuple[list[Row], str]:
    hosts = [f"host-{i:02}" for i in range(64)]
    scheduler = Scheduler([Pool(host, "cuda", tuple("01234567")) for host in hosts])
    holdings = [_full(host) for host in hosts]
    queues = {
        count: [ask_of(f"run-{i}", job) for i, job in enumerate(week_of_arrivals(count, seed=1))]
        for count in QUEUES
    }
    seconds: dict[int, list[float]] = {count: [] for count in QUEUES}
    num_plans = 5 if quick else 50
    for _ in range(num_plans):
        for count, queue in queues.items():
            began = time.perf_counter()
            plan = scheduler.plan(holdings, queue, NOW)
            seconds[count].append(time.perf_counter() - began)
            assert len(plan.waits) == count
    rows = [
        Row(
            f"a decision, {count} runs wait",
            median(seconds[count]) * 1e3,
            "ms",
            GOAL_MS if count == QUEUES[-1] else None,
            higher_is_better=False,
        )
        for count in QUEUES
    ]
    return rows, f"median of {num_plans} plans a queue, in turn; 64 runs hold 512 devices"


def _full(host: str) -> DeviceHolding:
    names = [PoolDevice(host, str(number)) for number in range(8)]
    ask = DeviceRequest(host, f"owner-{host}", 0, 0.0, Need("cuda", 1), Need("cuda", 1), 2, 7)
    return DeviceHolding(ask, Grant((names[0],), {i: (name,) for i, name in enumerate(names[1:])}))
