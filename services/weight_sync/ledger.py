"""What the coordinator must still know after a restart: the live version, the members, group numbers.

Each call writes through to the disk, off the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.weight_sync.members import Members
from trimaran.store import SqliteStore
from trimaran.types import Caller, PolicyVersion, VersionId, VersionState


class Ledger:
    def __init__(self, store: SqliteStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._key = f"weight_sync/{run_id}"

    def recover(self) -> tuple[PolicyVersion | None, Caller, Members]:
        """What was recorded last; nothing, epoch 0 and no members in a new run."""
        commit = self._store.get(f"{self._key}/live")
        members = Members.from_json(self._store.get(f"{self._key}/members") or [])
        caller = Caller(self._run_id, self._store.get(f"{self._key}/epoch") or 0)
        if commit is None:
            return None, caller, members
        version = VersionId(*commit["version"])
        live = PolicyVersion(self._run_id, version, commit["root"], VersionState.ACTIVE)
        return live, caller, members

    async def commit(self, live: PolicyVersion, staged: list[str]) -> None:
        """The commit record: from its return on, `live` is the version, whoever dies."""
        version = [live.version.lineage, live.version.step]
        await self._put("live", {"version": version, "root": live.root, "staged": staged})

    async def save_epoch(self, caller: Caller) -> None:
        await self._put("epoch", caller.epoch)

    async def save_members(self, members: Members) -> None:
        await self._put("members", members.to_json())

    async def next_group_id(self) -> int:
        return await asyncio.to_thread(self._store.next_epoch, f"{self._key}/groups")

    async def _put(self, name: str, value: Any) -> None:
        await asyncio.to_thread(self._store.put, f"{self._key}/{name}", value)
