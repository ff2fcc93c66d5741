"""Blocks that come from several sources at once into one buffer, and what is checked on the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch

from trimaran.errors import TransferError
from trimaran.types import Manifest, PolicyVersion, Ranges, Source, Transport
from weights.memory.host_memory import HostMemory
from weights.transports.calls import Stop
from weights.transports.carrier import Carrier, CarryJob, WrongBlockError, describe
from weights.version.digest import digest_tensor
from weights.version.layout import BlockLayout, intersect, numbers_of
from weights.version.manifest import Block, list_blocks, list_digests

DIGEST_THREADS = 4
"""For what lies there whole."""
MAX_NAMED = 3
"""Blocks that an error names; it counts the others."""


def name_blocks(blocks: Iterable[Block]) -> str:
    found = list(blocks)
    more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
    return ", ".join(describe(block) for block in found[:MAX_NAMED]) + more


def check_sources(manifest: Manifest, wanted: Ranges, sources: Sequence[Source]) -> None:
    """Raises TransferError unless the sources cover every wanted block once."""
    covered: set[int] = set()
    for source in sources:
        here = set(numbers_of(intersect(source.blocks, wanted)))
        if twice := sorted(covered & here):
            named = _name_numbers(manifest, twice)
            raise TransferError(f"two sources bring {named}; each block must have one")
        covered |= here
    if missing := [number for number in numbers_of(wanted) if number not in covered]:
        named = _name_numbers(manifest, missing)
        raise TransferError(f"no source brings {named}; the sources must cover the version")


def _name_numbers(manifest: Manifest, numbers: Sequence[int]) -> str:
    blocks = list_blocks(manifest.tensors)
    return name_blocks(blocks[number] for number in numbers)


class Verifier:
    """Compares what has landed in a buffer with a manifest."""

    def __init__(self, manifest: Manifest, buffer: torch.Tensor, layout: BlockLayout) -> None:
        self._digests = list_digests(manifest)
        self._buffer = buffer
        self._pieces = layout.by_number()

    def check(self, number: int) -> None:
        """Raises WrongBlockError, naming the block."""
        piece = self._pieces[number]
        found = digest_tensor(self._buffer[piece.start : piece.end])
        if found != self._digests[number]:
            raise WrongBlockError(
                f"{describe(piece.block)} arrived with digest {found},"
                f" the manifest says {self._digests[number]}"
            )

    def check_all(self, check: Callable[[], None]) -> None:
        """Every block. Raises WrongBlockError, and what `check` raises, which is asked before each."""

        def check_one(number: int) -> None:
            check()
            self.check(number)

        with ThreadPoolExecutor(DIGEST_THREADS, "digests") as threads:
            for _ in threads.map(check_one, self._pieces):
                pass


@dataclass(frozen=True, slots=True)
class Intake:
    """One stage: what is to come, from where, and until when."""

    version: PolicyVersion
    manifest: Manifest
    wanted: Ranges
    parts: Sequence[tuple[Source, BlockLayout]]
    """Each source with the layout of what travels from it."""
    carriers: Mapping[Transport, Carrier[Any]]
    bucket_bytes: int
    deadline: float
    """time.monotonic()."""
    stop: Stop

    def fill(
        self,
        buffer: torch.Tensor,
        layout: BlockLayout,
        landed: Callable[[int], None],
        memory: HostMemory | None = None,
    ) -> None:
        """Carry every source's stream into the buffer, all at the same time but for those of a
        transport that takes one at a time.

        `landed` checks a block that has its bytes; it is called from several
        threads. `memory`: the buffer's, where it outlives this stage. The first failure stops the other sources. Raises that failure,
        or TransferError when a transport ends without all of its blocks.
        """
        missing = {piece.block.number for piece in layout.pieces}
        lock = threading.Lock()

        def land(number: int) -> None:
            self.stop.check()
            landed(number)
            with lock:
                missing.discard(number)

        jobs = [
            CarryJob(
                self.version.root,
                source,
                stream,
                buffer,
                layout,
                land,
                self.bucket_bytes,
                self.deadline,
                self.stop,
                memory,
            )
            for source, stream in self.parts
        ]
        for transport, carrier in self.carriers.items():
            carrier.prepare([job.source for job in jobs if job.source.transport is transport])
        _run([(self.carriers[job.source.transport], job) for job in jobs], self.stop)
        if missing:
            blocks = [piece.block for piece in layout.pieces if piece.block.number in missing]
            raise TransferError(f"{name_blocks(blocks)} did not arrive")

    def check(self) -> None:
        """Raises TransferError when this stage is given up, or its time is over."""
        self.stop.check()
        if time.monotonic() > self.deadline:
            raise TransferError("the stage did not end by its deadline")

    def count_bytes(self, layout: BlockLayout) -> dict[Transport, int]:
        """Taken by each transport. `layout`: of the buffer that was filled, without padding."""
        sizes = {piece.block.number: piece.end - piece.start for piece in layout.pieces}
        found: dict[Transport, int] = {}
        for source, stream in self.parts:
            taken = sum(sizes.get(piece.block.number, 0) for piece in stream.pieces)
            found[source.transport] = found.get(source.transport, 0) + taken
        return found

    @property
    def settled(self) -> bool:
        """Nothing writes into a buffer of this stage any more."""
        return all(carrier.settled for carrier in self.carriers.values())


Jobs = Sequence[tuple[Carrier[Any], CarryJob[Any]]]


def _run(jobs: Jobs, stop: Stop) -> None:
    if not jobs:
        return
    in_turn = [(carrier, job) for carrier, job in jobs if carrier.one_at_a_time]
    lanes = [[(carrier, job)] for carrier, job in jobs if not carrier.one_at_a_time]
    lanes += [in_turn] if in_turn else []
    with ThreadPoolExecutor(len(lanes), "stage") as threads:
        futures = [threads.submit(_carry, lane) for lane in lanes]
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        error = next((error for future in done if (error := future.exception())), None)
        if error is not None:
            stop.set(f"another source failed: {error}")
            raise error


def _carry(jobs: Jobs) -> None:
    for carrier, job in jobs:
        carrier.carry(job)
