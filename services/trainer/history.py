"""The versions that this run's trainers made: the stream `versions/RUN_ID` in the run's store.

    {"lineage": 0, "step": 3, "root": "…"}

In the store before the version is answered. A replay that does not reach its recorded weights gives
one version a second root; both were made here, so both stand.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trimaran.errors import InputError
from trimaran.run_context import RunContext
from trimaran.store import Store, entries
from trimaran.types import PolicyVersion, VersionId

FORMER_FILE = "versions.jsonl"
"""Where Trimaran 0.1 kept them: in the run folder, one record a line."""


class VersionHistory:
    """Example: (await VersionHistory.open(store, run)).roots(VersionId(0, 3)) == {"5f1c…"}"""

    def __init__(self, store: Store, stream: str) -> None:
        """Use `open`."""
        self._store, self._stream = store, stream
        self._roots: dict[VersionId, set[str]] = {}
        self._adding = asyncio.Lock()

    @classmethod
    async def open(cls, store: Store, run: RunContext) -> VersionHistory:
        """What stands; the records of an older run's file are taken over."""
        history = cls(store, f"versions/{run.run_id}")
        if not await store.last(history._stream):
            await store.extend(history._stream, list(_read_file(run.folder / FORMER_FILE)), after=0)
        async for number, record in entries(store, history._stream):
            history._note(*_parse(record, f"{history._stream} {number}"))
        return history

    async def add(self, policy: PolicyVersion) -> None:
        """Idempotent. When it returns, the version is in the store."""
        version, root = policy.version, policy.root
        async with self._adding:
            if root not in self.roots(version):
                record = {"lineage": version.lineage, "step": version.step, "root": root}
                await self._store.extend(self._stream, [record])
                self._note(version, root)

    def roots(self, version: VersionId) -> frozenset[str]:
        """Empty for a version that no trainer of this run made."""
        return frozenset(self._roots.get(version, ()))

    def _note(self, version: VersionId, root: str) -> None:
        self._roots.setdefault(version, set()).add(root)


def _read_file(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]  # a crash in a line: its version was never answered
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not a version's record ({error})") from None
        _parse(record, f"{path}:{number}")
        yield record


def _parse(record: Any, where: str) -> tuple[VersionId, str]:
    try:
        return VersionId(record["lineage"], record["step"]), record["root"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: not a version's record ({error})") from None
