"""Every group's life as append-only, hash-chained records; the one source from which a run resumes.

`records.py` has the records, `ledger_state.py` says what they add up to. Each issued prompt ends in
exactly one of committed, filtered and skipped. A record's hash covers its content and the hash
before it, so that an altered, missing or foreign record is found and named.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from services.controller.ledger_state import LedgerState
from services.controller.payloads import PayloadStore, payload_digest
from services.controller.records import LedgerError, Record, Tree, decode, encode
from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import Entry, Store, entries


def chain_hash(before: str, tree: Tree) -> str:
    content = {key: value for key, value in tree.items() if key != "hash"}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{data}".encode()).hexdigest()


def first_hash(run_id: str) -> str:
    return hashlib.sha256(f"trimaran ledger of {run_id}".encode()).hexdigest()


async def fold(run_id: str, rows: AsyncIterable[Entry]) -> tuple[LedgerState, int, str]:
    """The state, the last sequence number and the last hash. Raises LedgerError where it breaks."""
    state, last, head = LedgerState(), 0, first_hash(run_id)
    async for sequence, tree in rows:
        if sequence != last + 1 or tree.get("hash") != chain_hash(head, tree):
            raise LedgerError(
                f"run {run_id}: the ledger's chain breaks at record {sequence}"
                f" ({tree.get('kind')}): it does not follow record {last}; the store was altered"
                " or damaged, so the run cannot be resumed from it"
            )
        try:
            state.apply(decode(tree))
        except LedgerError as error:
            raise LedgerError(f"run {run_id}: ledger record {sequence}: {error}") from None
        last, head = sequence, tree["hash"]
    return state, last, head


async def read_records(
    store: Store, run_id: str, after: int = 0
) -> AsyncGenerator[tuple[int, Record], None]:
    """Sequence number (from 1 on) and record, for each record behind `after`.

    For looking on, also while the run goes on: the chain is not checked here.
    """
    async for sequence, tree in entries(store, _stream(run_id), after):
        yield sequence, decode(tree)


class RunLedger:
    """Records and payloads gather in memory; `flush` makes all of them durable at once.

    Example:
        ledger = await RunLedger.open(store, PayloadStore(run_folder / "payloads"), run_folder.name)
        ledger.record(Issued(0, 1, "train.jsonl:1"))
        await ledger.flush()
        ledger.state.groups[0].stage is Stage.ISSUED
    """

    @classmethod
    async def open(cls, store: Store, payloads: PayloadStore, run_id: str) -> RunLedger:
        """Reads what stands. Raises LedgerError where it is damaged."""
        return cls(store, payloads, run_id, *await fold(run_id, entries(store, _stream(run_id))))

    def __init__(
        self,
        store: Store,
        payloads: PayloadStore,
        run_id: str,
        state: LedgerState,
        written: int,
        head: str,
    ) -> None:
        """Use `open`. The last three are what `fold` made of the stream."""
        self._store, self._payloads, self._run_id = store, payloads, run_id
        self.state, self._written, self._head = state, written, head
        self._new_trees: list[Tree] = []
        self._new_payloads: dict[str, bytes] = {}
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        # Its own: a disk that hangs must not use up the threads that others work in.
        self._writer = ThreadPoolExecutor(1, "payloads")

    def record(self, record: Record) -> None:
        """Raises LedgerError when it cannot follow what stands."""
        self.state.apply(record)
        tree = encode(record)
        self._head = chain_hash(self._head, tree)
        self._new_trees.append({**tree, "hash": self._head})

    def keep(self, data: bytes) -> str:
        """The digest under which a later record names the payload."""
        digest = payload_digest(data)
        self._new_payloads[digest] = data
        return digest

    def load(self, digest: str) -> bytes:
        return self._payloads.read(digest)

    async def flush(self) -> None:
        """Returns when everything recorded so far is on the disk, payloads before their records.

        What could not be written (UnavailableError) is written by the next flush.
        """
        # A task of its own: a caller that is cancelled leaves no record half-written behind.
        write = asyncio.create_task(self._write(), name="write the ledger")
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def prune_payloads(self, checkpoint: int) -> None:
        """Drop what no resume from `checkpoint` or later reads."""
        await self.flush()
        async with self._writing:
            await self._in_writer(self._payloads.prune, self.state.payloads_after(checkpoint))

    async def close(self) -> None:
        await asyncio.gather(*self._writes, return_exceptions=True)
        self._writer.shutdown(wait=True)

    async def _write(self) -> None:
        async with self._writing:  # who waits here finds its records written with the others'
            trees, payloads = list(self._new_trees), dict(self._new_payloads)
            if payloads:
                await self._in_writer(self._payloads.write, payloads)
                for digest in payloads:
                    self._new_payloads.pop(digest, None)
            if trees:
                await self._append(trees)

    async def _append(self, trees: list[Tree]) -> None:
        stream = _stream(self._run_id)
        try:
            await self._store.extend(stream, trees, after=self._written)
        except OutOfOrderError:
            await self._adopt(trees)
        else:
            self._took(len(trees))

    async def _adopt(self, trees: list[Tree]) -> None:
        """The stream does not end where we left it. An earlier flush may have written these records
        before it failed; then all is well."""
        stream, last = _stream(self._run_id), await self._store.last(_stream(self._run_id))
        if last < self._written:
            raise LedgerError(
                f"run {self._run_id}: the store lost records {last + 1} to {self._written} of the"
                " ledger, which it had acknowledged; bring back a copy that has them"
            )
        standing = [tree async for _, tree in entries(self._store, stream, self._written)]
        if standing != trees[: len(standing)]:
            raise StaleEpochError(
                f"run {self._run_id}: another controller writes to the ledger; stop this one"
            )
        self._took(len(standing))
        if rest := trees[len(standing) :]:
            await self._append(rest)

    def _took(self, num_records: int) -> None:
        self._written += num_records
        del self._new_trees[:num_records]

    async def _in_writer(self, function: Any, *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)


def _stream(run_id: str) -> str:
    return f"ledger/{run_id}"
