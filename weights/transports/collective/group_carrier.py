"""The receiving side of the collective transport: this process's ends of transfer groups."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from trimaran.errors import TransferError
from trimaran.host.device import Device
from trimaran.types import CollectiveSource
from weights.transports.carrier import Carrier, CarryJob, WrongBlockError
from weights.transports.collective.endpoint import SENDER, Collective
from weights.transports.collective.terms import Terms
from weights.transports.collective.turns import GroupTurn
from weights.transports.streams import Stream

DIGEST_THREADS = 4
"""For one transfer between accelerators, which pass one at a time. A core digests 10 GB/s and more, and a
link of 200 Gbit/s brings 25. On the host one is enough, and transfers run side by side."""
WAIT_SECONDS = 0.05


class GroupCarrier(Carrier[CollectiveSource]):
    """Joins a group on first use and keeps it while it is healthy and asked for."""

    def __init__(self, device: Device, index: int, address: str) -> None:
        self._device = device
        self._index = index
        self._address = address
        self._turn = GroupTurn()
        self._lock = threading.Lock()
        self._ends: dict[int, Collective] = {}
        self._unsettled: list[Collective] = []

    @property
    def one_at_a_time(self) -> bool:
        """On an accelerator; `turns.py` says why."""
        return not self._device.on_host

    def prepare(self, sources: Sequence[CollectiveSource]) -> None:
        groups = [source.group for source in sources]
        if not groups:
            return
        with self._lock:
            for group_id, end in list(self._ends.items()):
                if end.group not in groups or not end.healthy:
                    self._drop(group_id)

    def carry(self, job: CarryJob[CollectiveSource]) -> None:
        """The whole stream is taken also when a block is wrong: the other receivers need it."""
        end = self._join(job.source)
        arrival = _Arrival(job, 1 if self._device.on_host else DIGEST_THREADS)
        timeout = max(job.deadline - time.monotonic(), 0.0)
        try:
            with job.stop.interrupting(end.give_up):
                stream = Stream(job.stream, job.buffer, job.layout)
                base_root = job.source.delta.base_root if job.source.delta else ""
                terms = Terms.of(job.root, base_root, job.stream, job.bucket_bytes)
                end.broadcast(stream, terms, timeout, arrival.reach, job.memory)
                arrival.finish()
        except BaseException as error:
            # A transport that changes bytes is not used again.
            end.close()
            if isinstance(error, TransferError):
                job.stop.check()
            raise
        finally:
            arrival.close()

    @property
    def settled(self) -> bool:
        with self._lock:
            ends = [*self._unsettled, *(end for end in self._ends.values() if not end.healthy)]
            self._unsettled = [end for end in self._unsettled if not end.settled]
        return all(end.settled for end in ends)

    def close(self) -> None:
        with self._lock:
            for group_id in list(self._ends):
                self._drop(group_id)

    def _join(self, source: CollectiveSource) -> Collective:
        group, rank = source.group, source.rank
        if not SENDER < rank < group.world_size:
            raise TransferError(
                f"rank {rank} cannot receive in a group of {group.world_size};"
                " give it one of its ranks above 0"
            )
        if not group.rendezvous.rpartition(":")[2].isdigit():
            raise TransferError(
                f"transfer group {group.group_id} has no rendezvous; its sender must open it first"
            )
        with self._lock:
            end = self._ends.get(group.group_id)
            if end is not None and end.healthy and (end.group, end.rank) == (group, rank):
                return end
            if end is not None:
                self._drop(group.group_id)
            end = Collective(self._device, self._index, self._address, group, rank, self._turn)
            self._ends[group.group_id] = end
            return end

    def _drop(self, group_id: int) -> None:
        end = self._ends.pop(group_id)
        end.close()
        if not end.settled:
            self._unsettled.append(end)


class _Arrival:
    """Lands blocks as the stream passes their ends, on threads of its own: neither the group nor the
    copies wait for digests."""

    def __init__(self, job: CarryJob[CollectiveSource], num_threads: int) -> None:
        held = {piece.block.number for piece in job.pieces()}
        pieces = [piece for piece in job.stream.pieces if piece.block.number in held]
        self._ends = [piece.end for piece in pieces]
        self._numbers = [piece.block.number for piece in pieces]
        self._next = 0
        self._job = job
        self._num_threads = num_threads
        self._threads = ThreadPoolExecutor(num_threads, "transfer-digests")
        self._landing: list[Future[None]] = []
        """In the stream's order."""

    def reach(self, end: int) -> None:
        """From one thread at a time. A bucket's blocks are one call a thread: a call a block takes as long as its digest."""
        self._job.stop.check()
        first, self._next = self._next, bisect_right(self._ends, end, self._next)
        there = self._numbers[first : self._next]
        share = -(-len(there) // self._num_threads) or 1
        for start in range(0, len(there), share):
            self._landing.append(self._threads.submit(self._land, there[start : start + share]))

    def finish(self) -> None:
        """Returns once all have landed. Raises TransferError for the first wrong one of the stream."""
        self.reach(self._job.stream.num_bytes)
        left = set(self._landing)
        while left:
            self._job.stop.check()
            if time.monotonic() > self._job.deadline:
                raise TransferError("the blocks were not digested by the deadline")
            left = wait(left, WAIT_SECONDS).not_done
        for landing in self._landing:
            try:
                landing.result()
            except WrongBlockError as error:
                group_id = self._job.source.group.group_id
                raise TransferError(f"transfer group {group_id}: {error}") from None

    def close(self) -> None:
        """Digests that have not begun are not made any more."""
        self._threads.shutdown(cancel_futures=True)

    def _land(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            # On few cores gloo's own thread must come first, or the sender waits for digests.
            os.sched_yield()
            self._job.land(number)
