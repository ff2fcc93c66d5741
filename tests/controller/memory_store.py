"""A store and a payload store in memory, which fail and forget where a test asks for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from trimaran.errors import OutOfOrderError, UnavailableError
from trimaran.ledger.payloads.files import MissingPayloadError, Payloads, checked
from trimaran.ledger.payloads.pack import place_of
from trimaran.store import TrimmedError
from trimaran.types import LedgerEnd


class CrashError(BaseException):
    """The process dies here."""


class MemoryStore:
    """One stream, as `trimaran.store.Store` keeps it."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}
        self.end = 0
        self.faults: list[str] = []
        """What the next calls of `extend` do: "crash before", "crash after", "away", "answer lost"."""

    async def extend(self, stream: str, values: Sequence[Any], after: int | None = None) -> int:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "crash before":
            raise CrashError
        if fault == "away":
            raise UnavailableError("the store is away")
        if after != self.end:
            raise OutOfOrderError(f"{stream}: ends at {self.end}, not at {after}")
        for value in values:
            self.end += 1
            self.rows[self.end] = json.loads(json.dumps(value))
        if fault == "crash after":
            raise CrashError
        if fault == "answer lost":
            raise UnavailableError("the connection broke")
        return self.end

    async def read(
        self, stream: str, after: int | None = None, limit: int = 1000
    ) -> tuple[tuple[int, Any], ...]:
        first = min(self.rows, default=self.end + 1)
        if after is not None and after < first - 1 and after < self.end:
            raise TrimmedError(stream, after, first - 1)
        behind = [(n, self.rows[n]) for n in sorted(self.rows) if n > (after or 0)]
        return tuple(behind[:limit])

    async def last(self, stream: str) -> int:
        return self.end

    async def trim(self, stream: str, through: int) -> None:
        self.rows = {n: value for n, value in self.rows.items() if n > through}

    def lose(self, through: int) -> None:
        """It goes back to where it ended at `through`."""
        self.rows = {n: value for n, value in self.rows.items() if n <= through}
        self.end = through


class MemoryPayloads(Payloads):
    """As `trimaran.ledger.payloads.files.Payloads` keeps them."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.faults: list[str] = []
        """What the next calls of `write` do: "crash after" or "away"."""
        self.deletes = True
        self.owner = ""

    async def write(self, files: Mapping[str, bytes]) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise UnavailableError("the bucket is away")
        self.data |= files
        if fault == "crash after":
            raise CrashError

    async def read(self, name: str) -> bytes:
        place = place_of(name)
        if place.file not in self.data:
            raise MissingPayloadError(name)
        end = None if place.size is None else place.start + place.size
        return checked(self.data[place.file][place.start : end], place.digest, name)

    async def sizes(self) -> dict[str, int]:
        return {name: len(data) for name, data in self.data.items()}

    async def delete(self, files: Set[str]) -> None:
        if not self.deletes:
            raise UnavailableError("the bucket is away")
        for file in files:
            self.data.pop(file, None)

    async def claim(self, owner: str) -> str:
        self.owner = self.owner or owner
        return self.owner

    async def close(self) -> None: ...


class MemoryAnchor:
    """As `trimaran.ledger.anchor.AnchorFile` keeps it."""

    path = Path("ledger-head.json")

    def __init__(self) -> None:
        self.noted: LedgerEnd | None = None

    def read(self) -> LedgerEnd | None:
        return self.noted

    async def write(self, anchor: LedgerEnd) -> None:
        self.noted = anchor
