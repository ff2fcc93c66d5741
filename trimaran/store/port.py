"""What a run needs of a store, and how a store fails."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trimaran.errors import InternalError, OutOfOrderError, UnavailableError

PAGE = 1000
"""Records or entries that one call returns at most, unless it is asked for less or more."""
Entry = tuple[int, Any]
"""Sequence number and value."""


class ConflictError(OutOfOrderError):
    """A record is not the version that the caller expected, or a lease is another holder's by now."""


class TrimmedError(OutOfOrderError):
    """Entries behind the cursor were dropped."""

    def __init__(self, stream: str, after: int, through: int) -> None:
        super().__init__(
            f"{stream}: entries {after + 1} to {through} are no longer kept; read on after {through}"
        )
        self.through = through


class StoreError(InternalError):
    """The store is damaged, of another time or wrongly set up. No retry helps; a person does."""


class LostWritesError(StoreError):
    """The store has gone back: what it acknowledged is no longer there."""


class StoreFullError(UnavailableError):
    """The store takes no writes until there is room again."""


@dataclass(frozen=True, slots=True)
class Record:
    """What stands under a key."""

    value: Any
    version: int
    """Grows with each write of the key, also after it was deleted."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A right that ends by itself unless its holder renews it."""

    name: str
    holder: str
    epoch: int
    """The epoch of `name`, as `next_epoch` draws it: `put_fenced` takes it, a later holder has a larger one."""


class Store(Protocol):
    """Records by key, streams that only grow, leases, and counters that fence off older processes.

    Values are what JSON can hold. Several processes may use one store, each through clients of its
    own; a client belongs to the event loop that opened it. Each call is whole or nothing, and when
    it returns, its data is durable.

    Any call may raise UnavailableError (what it had to write may be written nonetheless) or
    StoreError.

    Example:
        store = await open_store("sqlite:runs/demo-20261120-120000/store.sqlite")
        version = await store.put("run/demo", {"state": "running"}, expected=0)
        await store.put("run/demo", {"state": "succeeded"}, expected=version)
        epoch = await store.next_epoch("demo")
    """

    @property
    def durability(self) -> str:
        """What may be lost in a crash although it was acknowledged, in words; empty: nothing."""
        ...

    async def get(self, key: str) -> Record | None:
        """None where nothing stands under the key."""
        ...

    async def put(self, key: str, value: Any, expected: int | None = None) -> int:
        """Replaces what stands under the key; returns the record's new version.

        Raises ConflictError unless the record has the version `expected`; 0: there must be none.
        """
        ...

    async def delete(self, key: str, expected: int | None = None) -> None:
        """Idempotent without `expected`, which is as in `put`."""
        ...

    async def list_records(
        self, prefix: str = "", after: str = "", limit: int = PAGE
    ) -> tuple[tuple[str, Record], ...]:
        """Records whose keys begin with `prefix` and come after `after`, in the order of the keys."""
        ...

    async def put_fenced(self, records: Mapping[str, Any], name: str, epoch: int) -> None:
        """All records or none, while `epoch` is the newest of `name`.

        Raises StaleEpochError when a newer one has been handed out.
        """
        ...

    async def extend(self, stream: str, values: Sequence[Any], after: int | None = None) -> int:
        """Append all or none; returns the stream's last sequence. Sequences count from 1.

        Raises OutOfOrderError when the stream does not end at `after`: another process writes to it.
        """
        ...

    async def read(
        self, stream: str, after: int | None = None, limit: int = PAGE
    ) -> tuple[Entry, ...]:
        """The next entries behind `after`, in order; None: from the first that is kept.

        Empty at the stream's end. Raises TrimmedError when entries behind `after` were dropped.
        """
        ...

    async def last(self, stream: str) -> int:
        """The last sequence that was given; 0 for a stream that nothing was appended to."""
        ...

    async def trim(self, stream: str, through: int) -> None:
        """Drop the entries up to and with `through`. The others keep their sequences. Idempotent."""
        ...

    async def acquire(self, name: str, holder: str, seconds: float) -> Lease | None:
        """None while another holder has the lease. `holder` names one process for all time.

        Who holds it already takes over from itself: its earlier lease cannot be renewed any more.
        """
        ...

    async def renew(self, lease: Lease, seconds: float) -> None:
        """It ends `seconds` from now. Raises ConflictError when another acquisition came between."""
        ...

    async def release(self, lease: Lease) -> None:
        """Others may have it at once. Nothing happens when it is another holder's by now."""
        ...

    async def holder(self, name: str) -> Lease | None:
        """Who has it now; None where it was never held, was released or has ended."""
        ...

    async def next_epoch(self, name: str) -> int:
        """A fencing epoch newer than every one handed out before; the first is 1 or more."""
        ...

    async def newest_epoch(self, name: str) -> int:
        """The last one that was handed out; 0 before the first."""
        ...

    async def delete_all(self, prefix: str = "") -> None:
        """Records, streams, leases and epochs whose names begin with `prefix`.

        For what is not used any more: epochs and sequences begin again. Without a prefix nothing of the
        store stays; a client that still uses it may get the error that it is lost.
        """
        ...

    async def close(self) -> None:
        """Idempotent."""
        ...


async def records(store: Store, prefix: str) -> AsyncGenerator[tuple[str, Record], None]:
    """All whose keys begin so, a page at a time. Raises as `Store.list_records` does.

    Example: `[key async for key, _ in records(store, "managed/")]`
    """
    after = prefix
    while True:
        page = await store.list_records(prefix, after)
        for found in page:
            yield found
        if len(page) < PAGE:
            return
        after = page[-1][0]


async def entries(
    store: Store, stream: str, after: int | None = None, page: int = PAGE
) -> AsyncGenerator[Entry, None]:
    """What stands in the stream behind `after`, a page at a time. Raises as `Store.read` does.

    Example: `[value async for _, value in entries(store, "ledger/demo")]`
    """
    while found := await store.read(stream, after, page):
        for entry in found:
            yield entry
        after = found[-1][0]


async def kept_entries(store: Store, stream: str, page: int = PAGE) -> AsyncGenerator[Entry, None]:
    """All that is kept, from the oldest on; what is dropped while it is read is left out.

    For streams whose old entries go. Raises UnavailableError and StoreError.

    Example: `[value async for _, value in kept_entries(store, events_stream("demo"))]`
    """
    after: int | None = None
    while True:
        try:
            async for number, value in entries(store, stream, after, page):
                yield number, value
                after = number
            return
        except TrimmedError as error:
            after = error.through


def encode_value(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def decode_value(text: str | bytes, where: str) -> Any:
    """`where`: what is read, for the error."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise StoreError(f"{where}: not JSON ({error}); the store was altered or damaged") from None


def check_expected(key: str, expected: int | None, version: int) -> None:
    """`version`: 0 where there is no record. Raises ConflictError."""
    if expected is not None and expected != version:
        raise ConflictError(f"{key}: has version {version}, not {expected}; read it again")
