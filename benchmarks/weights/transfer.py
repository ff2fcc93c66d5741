"""STAGE over gloo against a raw broadcast, and through shared memory against memcpy.

Sender and receiver are processes on a core each. Ours: the real WeightSender and WeightReceiver
with every block verified, in the state of every sync but the first: the group stands, the shadow's
memory is there. Versions alternate, so that no block of one is a block of the next.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.results_file import Row
from benchmarks.weights.sides import (
    ReceiverSide,
    SenderSide,
    both,
    free_port,
    longest,
)
from benchmarks.weights.versions import BUCKET_BYTES
from benchmarks.weights.workers import Worker
from trimaran.types import CollectiveSource, Manifest, MemorySource, RelaySource, TransferGroup
from weights.version.manifest import num_bytes

ROUNDS = 15
RAW_BUCKETS = {"in our buckets": BUCKET_BYTES, "in one piece": 1 << 40}
IDLE_SECONDS = 0.5
"""Before each transfer, so that none feels what the one before it has left to do."""
SENDER_CORES, RECEIVER_CORES = (0,), (1,)


class Pair:
    """A sender and a receiver, with a raw group beside ours."""

    def __init__(self, model: Path) -> None:
        self.sender = Worker(SenderSide, model, cores=SENDER_CORES)
        self.receiver = Worker(ReceiverSide, cores=RECEIVER_CORES)
        self.sender.begin("ready")
        self.receiver.call("ready")
        self.sender.result()
        self._group: TransferGroup | None = None
        self._num_staged = 0

    def take_snapshots(self, count: int = 2) -> None:
        self.sender.call("take_snapshots", count)
        self.peer, self.versions = self.sender.call("describe")
        self.num_bytes = model_bytes(self.versions[0][1])

    def join_raw(self) -> None:
        port = free_port()
        self.sender.begin("join_raw", 0, port, self.num_bytes)
        self.receiver.call("join_raw", 1, port, self.num_bytes)
        self.sender.result()

    def stage_collective(self) -> float:
        """Seconds until the sender has sent and the receiver has verified the next version."""
        step, blocks = self._next(), self._blocks()
        group = self._group = self._group or self.sender.call(
            "open", TransferGroup(1, "bench", 2, "")
        )
        policy, manifest, _ = self.versions[step]
        source = CollectiveSource(blocks, group, rank=1)
        self.receiver.begin("stage", policy, manifest, [source])  # first: it has more to unpack
        self.sender.begin("send", step, group, blocks)
        return longest(self.receiver.result(), self.sender.result())

    def stage_memory(self) -> float:
        """Of the next version, which the sender has just taken into the same memory."""
        self._num_staged += 1
        policy, manifest, path = self.sender.call("take_again", self._num_staged)
        source = MemorySource(self._blocks(), path)
        self._newest = policy, manifest, source
        return longest(self.receiver.call("stage", policy, manifest, [source]))

    def stage_neighbour(self, neighbour: Worker, shares: bool) -> float:
        """What `stage_memory` has brought, on another replica of the host."""
        policy, manifest, source = self._newest
        if shares:
            peer, path = self.receiver.call("lend")
            source = RelaySource(self._blocks(), (peer,), shared=path)
        return longest(neighbour.call("stage", policy, manifest, [source]))

    def _next(self) -> int:
        self._num_staged += 1
        return self._num_staged % len(self.versions)

    def _blocks(self) -> tuple[tuple[int, int], ...]:
        return ((0, self.versions[0][1].num_blocks),)

    def close(self) -> None:
        self.receiver.__exit__(None, None, None)
        self.sender.__exit__(None, None, None)


def model_bytes(manifest: Manifest) -> int:
    return sum(num_bytes(tensor) for tensor in manifest.tensors)


@contextlib.contextmanager
def running_pair(model: Path) -> Iterator[Pair]:
    pair = Pair(model)
    try:
        yield pair
    finally:
        pair.close()


def measure_stage(model: Path, work: Path) -> tuple[list[Row], str]:
    with running_pair(model) as pair:
        pair.take_snapshots()
        pair.join_raw()
        first = pair.stage_collective()
        sides: dict[str, Callable[[], float]] = {"ours": pair.stage_collective} | {
            name: partial(both, pair.sender, pair.receiver, "broadcast", bucket_bytes)
            for name, bucket_bytes in RAW_BUCKETS.items()
        }
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(ROUNDS + 1):
            taken = {}
            for side, measure in sides.items():
                time.sleep(IDLE_SECONDS)
                taken[side] = measure()
            if number:  # the first warms up
                for side, value in taken.items():
                    seconds[side].append(value)
        rate = {side: pair.num_bytes / 1e9 / _median(taken) for side, taken in seconds.items()}
    best = max(RAW_BUCKETS, key=lambda name: rate[name])
    rows = [
        Row("stage_over_gloo_against_raw_broadcast", rate["ours"] / rate[best], "ratio", 0.9, True),
        Row("stage_over_gloo", rate["ours"], "GB/s", None, True),
        *(
            Row(f"raw_broadcast_{name.replace(' ', '_')}", rate[name], "GB/s", None, True)
            for name in RAW_BUCKETS
        ),
        Row("stage_over_gloo_seconds", _median(seconds["ours"]), "s", None, False),
        Row("stage_over_gloo_seconds_with_group", first, "s", None, False),
    ]
    return rows, f"{_method(ROUNDS)}; the ratio is to the faster raw broadcast ({best})"


def measure_same_host(model: Path, work: Path) -> tuple[list[Row], str]:
    with running_pair(model) as pair:
        pair.take_snapshots(1)
        pair.join_raw()
        ours, raw = [], []
        for number in range(ROUNDS + 1):
            taken = pair.stage_memory(), longest(pair.receiver.call("copy"))
            if number:  # the first warms up
                ours.append(taken[0])
                raw.append(taken[1])
        rate = {"ours": pair.num_bytes / 1e9 / _median(ours)}
        rate["memcpy"] = pair.num_bytes / 1e9 / _median(raw)
    rows = [
        Row("same_host_against_memcpy", rate["ours"] / rate["memcpy"], "ratio", 0.5, True),
        Row("same_host", rate["ours"], "GB/s", None, True),
        Row("memcpy", rate["memcpy"], "GB/s", None, True),
        Row("same_host_seconds", _median(ours), "s", None, False),
    ]
    return rows, f"{_method(ROUNDS)}; memcpy by the receiver, between warm buffers"


def _method(rounds: int) -> str:
    return f"median of {rounds} interleaved rounds, sender on core 0, receiver on core 1"


def _median(values: list[float]) -> float:
    return statistics.median(values)
