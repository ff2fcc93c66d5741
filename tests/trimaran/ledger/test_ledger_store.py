"""What a run's ledger makes of a store that fails, was written to by another, or lost its tail."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.controller.run import take_over
from tests.controller.memory_store import MemoryStore as StreamStore
from tests.extending.memory_store import MemoryStore
from trimaran.errors import StaleEpochError
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.ledger import RunLedger, stream_of
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.ledger.records import Issued, LedgerError, decode
from trimaran.ledger.write_pause import HeldError
from trimaran.store import entries
from trimaran.types import Caller


async def written(store: Any, folder: Path) -> list[Any]:
    """The records that stand, read as a new controller reads them."""
    await RunLedger.open(store, FolderPayloads(folder), "run")  # the chain holds
    return [decode(tree) async for _, tree in entries(store, stream_of("run"))]


async def test_what_an_older_controller_writes_while_its_successor_reads_is_read_again(
    tmp_path: Path,
) -> None:
    store, payloads, reads = MemoryStore(), FolderPayloads(tmp_path), list[int]()
    anchor = AnchorFile(tmp_path)
    older = await RunLedger.open(store, payloads, "run", anchor=anchor)
    caller = Caller("run", await store.next_epoch("run"))

    async def read() -> RunLedger:
        ledger = await RunLedger.open(store, payloads, "run", anchor=anchor)
        reads.append(ledger.durable.records)
        if len(reads) <= 2:  # it goes on for a while
            older.record(Issued(100 + ledger.durable.records, 1, "p"))
            await older.flush()
        return ledger

    ledger = await take_over(read, store, caller, patience=30.0)
    assert (reads, ledger.durable.records) == ([0, 1, 2], 3)
    older.record(Issued(3, 1, "p"))
    with pytest.raises(StaleEpochError, match="another controller writes to the ledger"):
        await older.flush()
    await store.next_epoch("run")
    reads.clear()
    older = await RunLedger.open(store, payloads, "run", anchor=anchor)
    with pytest.raises(StaleEpochError):  # a newer controller has come: no more tries
        await take_over(read, store, caller, patience=30.0)
    assert len(reads) == 1
    anchor.close()


async def test_a_record_and_an_anchor_that_come_while_the_ledger_is_read_are_no_loss(
    tmp_path: Path,
) -> None:
    class Racing(MemoryStore):
        older: RunLedger | None = None

        async def read(self, *arguments: Any, **options: Any) -> Any:
            found = await super().read(*arguments, **options)
            if older := self.older:
                self.older = None
                older.record(Issued(1, 1, "p"))
                await older.flush()
            return found

    store, payloads, anchor = Racing(), FolderPayloads(tmp_path), AnchorFile(tmp_path)
    store.older = await RunLedger.open(store, payloads, "run", anchor=anchor)
    await RunLedger.open(store, payloads, "run", anchor=anchor)
    assert anchor.read() == (await RunLedger.open(store, payloads, "run")).durable
    anchor.close()


@pytest.mark.parametrize("fault", ["away", "answer lost"])
async def test_what_could_not_be_written_is_written_by_the_next_flush(
    tmp_path: Path, fault: str
) -> None:
    store: Any = StreamStore()
    ledger = await RunLedger.open(store, FolderPayloads(tmp_path), "run")
    store.faults = [fault]
    ledger.record(Issued(0, 1, "p"))
    payload = ledger.keep(b"tokens")
    with pytest.raises(HeldError, match="the store is away|the connection broke"):
        await ledger.flush()
    assert await ledger.load(payload) == b"tokens"
    ledger.record(Issued(1, 1, "p"))
    await ledger.flush()
    assert await written(store, tmp_path) == [Issued(0, 1, "p"), Issued(1, 1, "p")]


async def test_a_flush_that_is_cancelled_is_whole_nonetheless(tmp_path: Path) -> None:
    store: Any = StreamStore()
    ledger = await RunLedger.open(store, FolderPayloads(tmp_path), "run")
    for number in range(6):
        ledger.record(Issued(number, 1, "p"))
        ledger.keep(b"payload %d" % number)
        flush = asyncio.create_task(ledger.flush())
        for _ in range(number):
            await asyncio.sleep(0)
        flush.cancel()
    ledger.record(Issued(6, 1, "p"))
    await ledger.flush()
    assert await written(store, tmp_path) == [Issued(number, 1, "p") for number in range(7)]


async def test_a_record_that_is_refused_is_not_written(tmp_path: Path) -> None:
    store: Any = StreamStore()
    ledger = await RunLedger.open(store, FolderPayloads(tmp_path), "run")
    ledger.record(Issued(0, 1, "p"))
    with pytest.raises(LedgerError):
        ledger.record(Issued(0, 1, "p"))
    await ledger.flush()
    assert await written(store, tmp_path) == [Issued(0, 1, "p")]
