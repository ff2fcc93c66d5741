"""The versions that this run's trainers made: the stream `versions/RUN_ID` in the run's store.

    {"lineage": 0, "step": 3, "root": "…"}

In the store before the version is answered. A replay that does not reach its recorded weights gives
one version a second root; both were made here, so both stand.
"""

from __future__ import annotations

import asyncio
from typing import Any

from trimaran.errors import InputError
from trimaran.run.context import RunContext
from trimaran.store import Store, entries
from trimaran.types import PolicyVersion, VersionId


class VersionHistory:
    """Example: (await VersionHistory.open(store, run)).roots(VersionId(0, 3)) == {"5f1c…"}"""

    def __init__(self, store: Store, stream: str) -> None:
        """Use `open`."""
        self._store, self._stream = store, stream
        self._roots: dict[VersionId, set[str]] = {}
        self._adding = asyncio.Lock()

    @classmethod
    async def open(cls, store: Store, run: RunContext) -> VersionHistory:
        """The history as it stands in the store."""
        history = cls(store, f"versions/{run.run_id}")
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


def _parse(record: Any, where: str) -> tuple[VersionId, str]:
    try:
        return VersionId(record["lineage"], record["step"]), record["root"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{where}: not a version's record ({error})") from None
