from __future__ import annotations

import asyncio
from pathlib import Path

from services.trainer.exchange.history import VersionHistory
from tests.extending.memory_store import MemoryStore
from trimaran.run.context import RunContext
from trimaran.types import PolicyVersion, VersionId

FIRST = VersionId(0, 1)


def policy(version: VersionId, root: str) -> PolicyVersion:
    return PolicyVersion("run", version, root)


def run_in(folder: Path) -> RunContext:
    return RunContext("run", folder, "")


async def test_adding_is_idempotent_also_over_a_restart_and_at_the_same_time(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    for _ in range(2):
        history = await VersionHistory.open(store, run_in(tmp_path))
        await asyncio.gather(*(history.add(policy(FIRST, "a")) for _ in range(3)))
    assert await store.read("versions/run") == ((1, {"lineage": 0, "step": 1, "root": "a"}),)


async def test_a_replay_that_diverges_leaves_both_roots(tmp_path: Path) -> None:
    store = MemoryStore()
    for root in ("a", "b"):
        history = await VersionHistory.open(store, run_in(tmp_path))
        await history.add(policy(FIRST, root))
    again = await VersionHistory.open(store, run_in(tmp_path))
    assert again.roots(FIRST) == {"a", "b"}
