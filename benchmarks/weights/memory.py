"""Host memory above the model: what snapshot and shadow take, each shared page counted once (PSS).

The sender's process holds the model before; the receiver's holds nothing, because its engine's
copy of the model is the engine's. Peaks of both together are sampled while versions are staged:
a snapshot on one end and a shadow on the other are one copy for each. Then two receivers, replicas of
one host, with one shadow for both and with one for each.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.results_file import Row
from benchmarks.weights.sides import ReceiverSide
from benchmarks.weights.transfer import RECEIVER_CORES, Pair, running_pair
from benchmarks.weights.workers import Worker
from trimaran.config import WeightSyncSection
from weights.transports.collective.pump import NUM_BUCKETS

STAGES = 12
SECONDS_BETWEEN_SAMPLES = 0.005
ALLOWANCE = 1.05
"""Some 10 MB of Python's own growth, modules imported on the way among them."""


def measure_memory(model: Path, work: Path) -> tuple[list[Row], str]:
    rows: list[Row] = []
    for name in ("collective", "memory"):
        with running_pair(model) as pair:
            rows.append(_measure(pair, name))
    rows += [_measure_two(model, shares) for shares in (True, False)]
    buckets = NUM_BUCKETS * WeightSyncSection().bucket_mib
    rows.append(Row("device_memory_of_buckets", buckets, "MiB", None, False))
    return rows, (
        f"peak growth of PSS over {STAGES} stages, in copies of the model, mean of sender and"
        " receiver; the greatest growth of two receivers together after a stage, because pages that"
        " several map change sides while one process after another is sampled; the device's buckets are what the configuration says, as no accelerator is here"
    )


def _measure(pair: Pair, name: str) -> Row:
    processes = [psutil.Process(pair.sender.process_id), psutil.Process(pair.receiver.process_id)]
    before = _pss(processes)
    pair.take_snapshots(1)
    stage = pair.stage_collective if name == "collective" else pair.stage_memory
    peak = _peak(processes, lambda: [stage() for _ in range(STAGES)])
    copies = (peak - before) / pair.num_bytes / len(processes)
    return Row(f"host_memory_an_end_{name}", copies, "copies", ALLOWANCE, False)


def _measure_two(model: Path, shares: bool) -> Row:
    with (
        running_pair(model) as pair,
        Worker(ReceiverSide, cores=RECEIVER_CORES) as neighbour,
    ):
        neighbour.call("ready")
        pair.take_snapshots(1)
        workers = (pair.sender, pair.receiver, neighbour)
        processes = [psutil.Process(worker.process_id) for worker in workers]
        before = _pss(processes)

        after = []
        for _ in range(STAGES):
            pair.stage_memory()
            pair.stage_neighbour(neighbour, shares)
            after.append(_pss(processes))
        copies = (max(after) - before) / pair.num_bytes
    name = "one_shadow" if shares else "a_shadow_each"
    goal = ALLOWANCE if shares else None
    return Row(f"host_memory_two_replicas_{name}", copies, "copies", goal, False)


def _peak(processes: list[psutil.Process], work: Callable[[], object]) -> int:
    seen = [0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(SECONDS_BETWEEN_SAMPLES):
            seen.append(_pss(processes))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join(timeout=30)
    return max(seen)


def _pss(processes: list[psutil.Process]) -> int:
    return sum(process.memory_full_info().pss for process in processes)
