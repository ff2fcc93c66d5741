"""Every group's life as append-only, hash-chained records; the one source from which a run resumes.

`records.py` has the records, `ledger_state.py` says what they add up to. Each issued prompt ends in
exactly one of committed, filtered and skipped. A record's hash covers its content and the hash
before it, so that an altered, missing or foreign record is found and named.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from services.controller.ledger_state import LedgerState
from services.controller.payloads import PayloadStore, payload_digest
from services.controller.records import LedgerError, Record, Tree, decode, encode
from trimaran.errors import OutOfOrderError, StaleEpochError
from trimaran.store import Store


def chain_hash(before: str, tree: Tree) -> str:
    content = {key: value for key, value in tree.items() if key != "hash"}
    data = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}\n{data}".encode()).hexdigest()


def first_hash(run_id: str) -> str:
    return hashlib.sha256(f"trimaran ledger of {run_id}".encode()).hexdigest()


def fold(run_id: str, rows: Iterable[tuple[int, Tree]]) -> tuple[LedgerState, int, str]:
    """The state, the last sequence number and the last hash. Raises LedgerError where it breaks."""
    state, last, head = LedgerState(), 0, first_hash(run_id)
    for sequence, tree in rows:
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


def read_records(store: Store, run_id: str, after: int = 0) -> Iterator[tuple[int, Record]]:
    """Sequence number (from 1 on) and record, for each record behind `after`.

    For looking on, also while the run goes on: the chain is not checked here.
    """
    return ((sequence, decode(tree)) for sequence, tree in store.read(_stream(run_id), after))


class RunLedger:
    """Records and payloads gather in memory; `flush` makes all of them durable at once.

    Example:
        ledger = RunLedger(store, PayloadStore(run_folder / "payloads"), run_folder.name)
        ledger.record(Issued(0, 1, "train.jsonl:1"))
        await ledger.flush()
        ledger.state.groups[0].stage is Stage.ISSUED
    """

    def __init__(self, store: Store, payloads: PayloadStore, run_id: str) -> None:
        """Reads what stands. Raises LedgerError where it is damaged."""
        self._store, self._payloads, self._run_id = store, payloads, run_id
        self.state, self._written, self._head = fold(run_id, store.read(_stream(run_id)))
        self._new_trees: list[Tree] = []
        self._new_payloads: dict[str, bytes] = {}
        self._flushing = asyncio.Lock()
        # One thread, so that what is handed over first is written first, cancelled or not.
        self._writer = ThreadPoolExecutor(1, "ledger")

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
        """Returns when everything recorded so far is on the disk, payloads before their records."""
        async with self._flushing:  # who waits here finds its records written with the others'
            trees, self._new_trees = self._new_trees, []
            payloads, self._new_payloads = self._new_payloads, {}
            if trees or payloads:
                await self._in_writer(self._write, trees, payloads)

    async def prune_payloads(self, checkpoint: int) -> None:
        """Drop what no resume from `checkpoint` or later reads."""
        await self.flush()
        await self._in_writer(self._payloads.prune, self.state.payloads_after(checkpoint))

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    async def _in_writer(self, function: Any, *arguments: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(self._writer, function, *arguments)

    def _write(self, trees: list[Tree], payloads: dict[str, bytes]) -> None:
        self._payloads.write(payloads)
        try:
            self._store.extend(_stream(self._run_id), trees, after=self._written)
        except OutOfOrderError:
            raise StaleEpochError(
                f"run {self._run_id}: another controller writes to the ledger; stop this one"
            ) from None
        self._written += len(trees)


def _stream(run_id: str) -> str:
    return f"ledger/{run_id}"
