"""The ledger over a long run: memory of the controller, speed, and growth on the disk.

    python -m benchmarks.control.ledger [GROUPS [STEPS_BETWEEN_FLUSHES]]

Everything is real but for the disk under the payloads: these are sized and then dropped, since a
million groups of 8 x 512 tokens take tens of gigabytes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_file import Row
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.chain import fold
from trimaran.ledger.ledger import RunLedger, read_trees, stream_of
from trimaran.ledger.payloads.archive import PREFIX
from trimaran.ledger.payloads.files import FolderPayloads, payload_digest
from trimaran.ledger.records import (
    Checkpointed,
    Committed,
    Consumed,
    Generated,
    Issued,
    Scored,
    Timed,
)
from trimaran.store import entries, open_store
from trimaran.types import (
    Completion,
    Group,
    Message,
    Prompt,
    Proof,
    Score,
    ScoredGroup,
    Segment,
    VersionId,
)
from trimaran.wire.messages import serialize_scored_group

MIB = 1 << 20
RUN_ID = "bench"
GROUPS_PER_STEP = 8
GROUP_SIZE = 8
NUM_TOKENS = 512
CHECKPOINT_EVERY = 100
REPLICAS = 4


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    """What `measure_ledger` found."""

    num_groups: int
    num_records: int
    write_seconds: float
    start_mib: float
    """Resident memory after the first tenth, which has warmed everything up."""
    end_mib: float
    resume_seconds: float
    """Of a fold of what the store still holds."""
    read_seconds: float
    """Of a fold of every record, from the archive and the store."""
    read_growth_mib: float
    store_bytes: int
    archive_bytes: int
    payload_bytes: int
    """Of all groups; of what a resume needs it is a small part."""

    def per_million(self, num_bytes: int) -> float:
        """MiB for a million completions."""
        return num_bytes * 1e6 / (self.num_groups * GROUP_SIZE) / MIB


class SizedPayloads(FolderPayloads):
    """Writes the archive, and drops scored groups."""

    async def write(self, files: Mapping[str, bytes]) -> None:
        archives = {name: data for name, data in files.items() if name.startswith(PREFIX)}
        await super().write(archives)

    async def delete(self, files: Set[str]) -> None: ...


def scored_group(number: int) -> ScoredGroup:
    """Tokens of a large vocabulary and log-probabilities, as random as real ones."""
    draw = random.Random(number)
    segments = (Segment(0, NUM_TOKENS, VersionId(0, 7), "rollout-0"),)
    completions = tuple(
        Completion(
            tuple(draw.randrange(150_000) for _ in range(NUM_TOKENS)),
            tuple(-draw.random() for _ in range(NUM_TOKENS)),
            "".join(draw.choice("abcdefgh ") for _ in range(4 * NUM_TOKENS)),
            "stop",
            segments,
        )
        for _ in range(GROUP_SIZE)
    )
    prompt = Prompt(f"train.jsonl:{number}", (Message("user", "x" * 400),), "default", "42")
    group = Group(number, 1, prompt, tuple(range(100)), completions)
    return ScoredGroup(group, tuple(Score(0.5, {"exact": 0.5}) for _ in completions))


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def store_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("store.sqlite*"))


def record_step(ledger: RunLedger, step: int) -> None:
    first = (step - 1) * GROUPS_PER_STEP
    numbers = range(first, first + GROUPS_PER_STEP)
    for number in numbers:
        ledger.record(Issued(number, 1, f"train.jsonl:{number}"))
        digest = payload_digest(f"group {number}".encode())
        maker = (f"rollout-{number % REPLICAS}", f"0.{step - 1}")
        ledger.record(Generated(number, 1, digest, (maker,)))
        values = (0.5,) * GROUP_SIZE
        payload = ledger.keep(f"scored {number}".encode())
        ledger.record(Scored(number, 1, payload, values, (("exact", values),)))
    root = payload_digest(str(step).encode())[:32]
    version = VersionId(0, step - 1)
    proofs = tuple(Proof(version, f"rollout-{i}", root, 694, 87) for i in range(REPLICAS))
    ledger.record(Consumed(step, tuple((number, 1) for number in numbers), proofs))
    ledger.record(Committed(VersionId(0, step), root))
    ledger.record(Timed(step, 5.25))


def measure_ledger(work: Path, quick: bool) -> tuple[list[Row], str]:
    """A part of `python -m benchmarks.control`."""
    num_groups, flush_every = (20_000, 1) if quick else (1_000_000, 16)
    found = asyncio.run(record_groups(work, num_groups, flush_every))
    growth = found.end_mib - found.start_mib
    return [
        Row("ledger_memory_growth", growth, "MiB", 16.0, False),
        Row("ledger_memory", found.end_mib, "MiB", None, False),
        Row("ledger_records_written", found.num_records / found.write_seconds, "1/s", None, True),
        Row("ledger_records_read", found.num_records / found.read_seconds, "1/s", None, True),
        Row("ledger_read_memory_growth", found.read_growth_mib, "MiB", 16.0, False),
        Row("ledger_resume", found.resume_seconds, "s", None, False),
        Row(
            "store_per_million_completions",
            found.per_million(found.store_bytes),
            "MiB",
            None,
            False,
        ),
        Row(
            "archive_per_million_completions",
            found.per_million(found.archive_bytes),
            "MiB",
            None,
            False,
        ),
        Row(
            "payloads_per_million_completions",
            found.per_million(found.payload_bytes),
            "MiB",
            None,
            False,
        ),
    ], (
        f"{num_groups} groups of {GROUP_SIZE} x {NUM_TOKENS} tokens, {GROUPS_PER_STEP} a step, a"
        f" checkpoint each {CHECKPOINT_EVERY} steps, SQLite, durable each {flush_every} steps; memory"
        " is what is resident after the first tenth and at the end; payloads are sized, not written"
    )


async def record_groups(folder: Path, num_groups: int, flush_every: int) -> LedgerFigures:
    """`flush_every`: steps; 1 is what a run does, more spares the disk where memory is asked for."""
    samples = [len(serialize_scored_group(scored_group(number))) for number in range(8)]
    payloads = SizedPayloads(folder / "payloads")
    store = await open_store(f"sqlite:{folder / 'store.sqlite'}")
    ledger = await RunLedger.open(store, payloads, RUN_ID, anchor=AnchorFile(folder))
    num_steps, start_mib, began = num_groups // GROUPS_PER_STEP, 0.0, time.perf_counter()
    for step in range(1, num_steps + 1):
        record_step(ledger, step)
        if step % flush_every == 0:
            await ledger.flush()
        if step % CHECKPOINT_EVERY == 0:
            ledger.record(Checkpointed(step, "checkpoints", step))
            await ledger.collect()
        if step % max(1, num_steps // 10) == 0:
            now = resident_mib()
            start_mib = start_mib or now
            print(f"{step * GROUPS_PER_STEP} groups: {now:.1f} MiB", flush=True)
    await ledger.flush()
    write_seconds, end_mib = time.perf_counter() - began, resident_mib()
    num_records = ledger.anchor.records
    await ledger.close()
    del ledger

    began = time.perf_counter()
    await fold(RUN_ID, entries(store, stream_of(RUN_ID)))
    resume_seconds = time.perf_counter() - began
    before, began = resident_mib(), time.perf_counter()
    chain = await fold(RUN_ID, read_trees(store, payloads, RUN_ID))
    read_seconds = time.perf_counter() - began
    assert (chain.last, chain.state.totals.committed) == (num_records, num_steps * GROUPS_PER_STEP)
    growth = resident_mib() - before
    await store.close()
    return LedgerFigures(
        num_groups=num_steps * GROUPS_PER_STEP,
        num_records=num_records,
        write_seconds=write_seconds,
        start_mib=start_mib,
        end_mib=end_mib,
        resume_seconds=resume_seconds,
        read_seconds=read_seconds,
        read_growth_mib=growth,
        store_bytes=store_bytes(folder),
        archive_bytes=sum((await payloads.sizes()).values()),
        payload_bytes=num_steps * GROUPS_PER_STEP * sum(samples) // len(samples),
    )
