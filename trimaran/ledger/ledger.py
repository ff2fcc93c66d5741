"""Every group's life as append-only, hash-chained records; the one source from which a run resumes.

`records.py` has the records, `chain.py` their order, `ledger_state.py` says what they add up to.
Each issued prompt ends in exactly one of committed, filtered and skipped.

What is older than the oldest kept checkpoint goes: payloads are deleted, and records leave the
store for the archive (`archive.py`). `anchor.py` notes outside the store how far the ledger came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

from trimaran.errors import OutOfOrderError, StaleEpochError, UnavailableError
from trimaran.ledger.anchor import AnchorFile
from trimaran.ledger.chain import Chain, fold
from trimaran.ledger.payloads.archive import PREFIX, read_archive
from trimaran.ledger.payloads.files import Payloads, payload_digest
from trimaran.ledger.payloads.pack import Pack, place_of
from trimaran.ledger.payloads.quota import Act, Quota
from trimaran.ledger.records import (
    Compacted,
    LedgerError,
    Record,
    Tree,
    canonical,
    chain_hash,
    encode,
)
from trimaran.ledger.state import LedgerState, encode_state
from trimaran.ledger.write_pause import WritePause
from trimaran.store import Store, TrimmedError, entries
from trimaran.types import LedgerEnd

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Retention:
    """What is kept of what no resume needs any more, and how much may be.

    Example: Retention(keep_all=config.run.keep_payloads == "all", quota_gib=200)
    """

    keep_all: bool = False
    """Payloads: all of them for `trimaran replay`, or only those that a resume needs."""
    quota_gib: float | None = None
    """The bound of payloads; the archive, which nothing removes, comes on top."""
    segment_records: int = 10_000
    """Records that one payload of the archive holds."""


def stream_of(run_id: str) -> str:
    return f"ledger/{run_id}"


async def read_trees(
    store: Store, payloads: Payloads, run_id: str, after: int = 0
) -> AsyncGenerator[tuple[int, Tree]]:
    """Every record behind `after`, of the archive and of the store, also while the run goes on.

    The chain is not checked here.
    """
    stream = stream_of(run_id)
    while standing := await store.read(stream, None, 1):
        [(first, oldest)] = standing
        if first > after + 1:
            async for sequence, tree in read_archive(payloads, oldest, after):
                yield sequence, tree
        after = max(after, first - 1)
        try:
            async for sequence, tree in entries(store, stream, after):
                yield sequence, tree
                after = sequence
        except TrimmedError:  # the controller has archived more of it meanwhile
            continue
        return


class RunLedger:
    """Records and payloads gather in memory; `flush` makes all of them durable at once.

    Example:
        ledger = await RunLedger.open(store, open_payloads(None, run_folder, run_id), run_id)
        ledger.record(Issued(0, 1, "train.jsonl:1"))
        await ledger.flush()
        ledger.state.groups[0].stage is Stage.ISSUED
    """

    @classmethod
    async def open(
        cls,
        store: Store,
        payloads: Payloads,
        run_id: str,
        *,
        anchor: AnchorFile | None = None,
        retention: Retention = Retention(),
        pause: WritePause | None = None,
    ) -> RunLedger:
        """Reads what stands. Raises LedgerError where it is damaged, or lacks its last records."""
        noted = (
            anchor.read() if anchor else None
        )  # before: an older controller may still write both
        chain = await fold(run_id, entries(store, stream_of(run_id)))
        ledger = cls(store, payloads, chain, anchor, retention, pause or WritePause(timeout=0))
        if anchor and noted:
            await ledger.check_anchor(noted, str(anchor.path))
        return ledger

    def __init__(
        self,
        store: Store,
        payloads: Payloads,
        chain: Chain,
        anchor: AnchorFile | None,
        retention: Retention,
        pause: WritePause,
    ) -> None:
        """Use `open`."""
        self._store, self._payloads, self._chain = store, payloads, chain
        self._anchor, self._retention, self._pause = anchor, retention, pause
        self._stream = stream_of(chain.run_id)
        self._written, self._written_hash = chain.last, chain.head
        self._new_trees: list[Tree] = []
        self._new_packs: list[Pack] = []
        self._filling: Pack | None = None
        """The last of them, until its write begins."""
        self._new_archives: dict[str, bytes] = {}
        """Each is written after the records that it holds and before the one that names it."""
        self.quota = Quota(retention.quota_gib, pause)
        """The quota of all payloads, without the archive."""
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()
        self._queued: asyncio.Task[None] | None = None
        """A write that has not begun: it takes what is recorded until then, of all who wait for it."""

    @property
    def state(self) -> LedgerState:
        return self._chain.state

    @property
    def source(self) -> tuple[Store, Payloads, str]:
        """For who reads from it what is no longer in its state: store, payloads and run id."""
        return self._store, self._payloads, self._chain.run_id

    @property
    def anchor(self) -> LedgerEnd:
        """How far the ledger has come, with what is not yet flushed."""
        return LedgerEnd(self._chain.last, self._chain.head)

    @property
    def durable(self) -> LedgerEnd:
        """How far it has come on the disk."""
        return LedgerEnd(self._written, self._written_hash)

    @property
    def is_short(self) -> bool:
        """Groups wait for room in the quota, and a checkpoint may make some."""
        return not self._retention.keep_all and self.quota.short.is_set()

    def is_filled(self, share: float, num_groups: float = 0) -> bool:
        """Whether so many more groups may fill more than `share` of the quota, and a checkpoint may help."""
        return not self._retention.keep_all and self.quota.is_filled(share, num_groups)

    async def check_anchor(self, anchor: LedgerEnd, place: str) -> None:
        """Raises LedgerError when the store does not hold what `anchor`, kept at `place`, saw."""
        last, run_id = self._chain.last, self._chain.run_id
        if anchor.records > last:
            raise LedgerError(
                f"run {run_id}: ledger records {last + 1} to {anchor.records} are missing: the store"
                f" ends at record {last}, and {place} has seen them. Bring back a copy of the store"
                " that has them, or remove what has seen them to go on without: what they recorded"
                " is then made again"
            )
        try:
            found = await self._store.read(self._stream, anchor.records - 1, 1)
        except TrimmedError:
            return  # the records that are left follow from it, or the chain would be broken
        if found and found[0][1]["hash"] != anchor.hash:
            raise LedgerError(
                f"run {run_id}: ledger record {anchor.records} is not the one that {place} has seen:"
                " the store holds another history"
            )

    def record(self, record: Record) -> None:
        """Raises LedgerError when it cannot follow what stands."""
        segment = self._chain.segment
        # Before the next record, not behind the last one: so a controller that died in between cuts
        # the same segment again, and names the same payload.
        if segment.num_records >= self._retention.segment_records:
            data = segment.data()
            digest = payload_digest(data)
            self._new_archives[PREFIX + digest] = data
            state = encode_state(self.state)
            self._add(Compacted(self._chain.head, digest, segment.first, state))
        self.state.apply(record)
        self._add(record)

    def _add(self, record: Record) -> None:
        tree = encode(record)
        content = canonical(tree)
        tree["hash"] = chain_hash(self._chain.head, content)
        self._chain.add(self._chain.last + 1, tree, content, record)
        self._new_trees.append(tree)

    async def until_room(self, num_bytes: int, ask: Act) -> None:
        """Returns once the quota has room for a payload that is to be kept. Records are written meanwhile.
        `ask`: for a checkpoint, which may make room."""
        await self.quota.until_room(num_bytes, lambda: self._once(self._drop_payloads), ask)

    def keep(self, data: bytes, digest: str = "") -> str:
        """The name under which a later record names the payload. `digest`: where it is known already."""
        self.quota.add(len(data))
        if self._filling is None or self._filling.is_full:
            self._filling = Pack()
            self._new_packs.append(self._filling)
        return self._filling.add(data, digest or payload_digest(data))

    async def load(self, name: str) -> bytes:
        return await self._payloads.read(name)

    async def flush(self) -> None:
        """Returns when everything recorded so far is durable, payloads before their records.

        Waits while there is no room. What could not be written is written by the next flush.
        """
        if self._queued is None:
            self._queued = self._in_turn(self._write)
        await asyncio.shield(self._queued)

    async def collect(self) -> None:
        """After a checkpoint: drop the payloads that no resume needs, and archived records.

        What cannot be dropped now is dropped after the next one.
        """
        await self.flush()
        try:
            await self._once(self._collect)
        except UnavailableError as error:
            logger.warning("what no resume needs stays until the next checkpoint: %s", error)

    async def close(self) -> None:
        """Waits for the writes under way, and gives up one that is held."""
        if self._writes:
            await asyncio.wait(self._writes, timeout=0 if self._pause.held else CLOSE_SECONDS)
        for write in self._writes:
            write.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def _once(self, work: Callable[[], Awaitable[None]]) -> None:
        await asyncio.shield(self._in_turn(work))

    def _in_turn(self, work: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """A task of its own: a caller that is cancelled leaves nothing half-written behind."""

        async def carry_out() -> None:
            async with self._writing:
                await work()

        task = asyncio.create_task(carry_out(), name="write the ledger")
        self._writes.add(task)
        task.add_done_callback(self._written_or_not)
        return task

    def _written_or_not(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if self._queued is task:  # cancelled before it began
            self._queued = None
        if not task.cancelled():
            task.exception()  # of interest to those who wait, if they still do

    async def _write(self) -> None:
        self._queued = self._filling = None
        trees = list(self._new_trees)
        for pack in list(self._new_packs):
            files = {pack.file: pack.data()}
            await self._pause.until_written(lambda files=files: self._payloads.write(files))
            self._new_packs.remove(pack)
        if trees:
            start = self._written
            await self._write_archives(trees, start)
            await self._pause.until_written(lambda: self._append(trees, start))
            if self._anchor:
                anchor, file = self.durable, self._anchor
                await self._pause.until_written(lambda: file.write(anchor))

    async def _write_archives(self, trees: list[Tree], start: int) -> None:
        archives = dict(self._new_archives)
        for index, tree in enumerate(trees) if archives else ():
            if tree["kind"] == "compacted" and (name := PREFIX + tree["archive"]) in archives:
                before, data = trees[:index], {name: archives[name]}
                await self._pause.until_written(lambda before=before: self._append(before, start))
                await self._pause.until_written(lambda data=data: self._payloads.write(data))
                self._new_archives.pop(name, None)

    async def _append(self, trees: list[Tree], start: int) -> None:
        """Those of `trees`, which come after record `start`, that are not written yet."""
        while rest := trees[self._written - start :]:
            try:
                await self._store.extend(self._stream, rest, after=self._written)
                num_written = len(rest)
            except OutOfOrderError:
                num_written = await self._num_standing(rest)
            self._written += num_written
            self._written_hash = rest[num_written - 1]["hash"]
            del self._new_trees[:num_written]

    async def _num_standing(self, trees: list[Tree]) -> int:
        """The stream does not end where we left it. Records of ours may stand there, from a try
        whose answer was lost. Raises LedgerError or StaleEpochError for any other reason."""
        run_id, last = self._chain.run_id, await self._store.last(self._stream)
        if last < self._written:
            raise LedgerError(
                f"run {run_id}: ledger records {last + 1} to {self._written} are missing: the store"
                " had acknowledged them and lost them; bring back a copy of it that has them"
            )
        found = await self._store.read(self._stream, self._written, len(trees) + 1)
        standing = [tree["hash"] for _, tree in found]
        if not standing or standing != [tree["hash"] for tree in trees[: len(standing)]]:
            raise StaleEpochError(
                f"run {run_id}: another controller writes to the ledger; stop this one"
            )
        return len(standing)

    async def _collect(self) -> None:
        if not self._retention.keep_all:
            await self._drop_payloads()
        if needless := self._chain.needless:
            await self._store.trim(self._stream, needless)

    async def _drop_payloads(self) -> None:
        """All but those that a resume needs, and counts the bytes that are left."""
        needed = self._needed_files()
        # A resume reads what is written, and may need what the newest records do not.
        await self._write()
        found = await self._payloads.sizes()
        sizes = {name: size for name, size in found.items() if not name.startswith(PREFIX)}
        if not self._retention.keep_all:
            drop = sizes.keys() - needed - self._needed_files()
            await self._payloads.delete(drop)
            sizes = {name: size for name, size in sizes.items() if name not in drop}
        sizes |= {pack.file: pack.size for pack in self._new_packs}
        self.quota.counted(sum(sizes.values()))

    def _needed_files(self) -> set[str]:
        return {place_of(name).file for name in self.state.payloads_after(self.state.oldest_step)}
