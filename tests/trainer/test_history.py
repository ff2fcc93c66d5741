from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from services.trainer.history import FORMER_FILE, VersionHistory
from tests.extending.memory_store import MemoryStore
from trimaran.errors import InputError
from trimaran.run_context import RunContext
from trimaran.types import PolicyVersion, VersionId

FIRST = VersionId(0, 1)


def policy(version: VersionId, root: str) -> PolicyVersion:
    return PolicyVersion("run", version, root)


def run_in(folder: Path) -> RunContext:
    return RunContext("run", folder, "")


def test_a_restarted_trainer_knows_what_the_runs_trainers_made(tmp_path: Path) -> None:
    async def body() -> None:
        store = MemoryStore()
        history = await VersionHistory.open(store, run_in(tmp_path))
        await history.add(policy(FIRST, "a"))
        await history.add(policy(VersionId(1, 1), "b"))
        again = await VersionHistory.open(store, run_in(tmp_path))
        assert again.roots(FIRST) == {"a"}
        assert again.roots(VersionId(1, 1)) == {"b"}
        assert again.roots(VersionId(0, 2)) == frozenset()
        other = await VersionHistory.open(store, RunContext("other", tmp_path, ""))
        assert other.roots(FIRST) == frozenset()

    asyncio.run(body())


def test_adding_is_idempotent_also_over_a_restart_and_at_the_same_time(tmp_path: Path) -> None:
    async def body() -> None:
        store = MemoryStore()
        for _ in range(2):
            history = await VersionHistory.open(store, run_in(tmp_path))
            await asyncio.gather(*(history.add(policy(FIRST, "a")) for _ in range(3)))
        assert await store.read("versions/run") == ((1, {"lineage": 0, "step": 1, "root": "a"}),)

    asyncio.run(body())


def test_a_replay_that_diverges_leaves_both_roots(tmp_path: Path) -> None:
    async def body() -> None:
        store = MemoryStore()
        for root in ("a", "b"):
            history = await VersionHistory.open(store, run_in(tmp_path))
            await history.add(policy(FIRST, root))
        again = await VersionHistory.open(store, run_in(tmp_path))
        assert again.roots(FIRST) == {"a", "b"}

    asyncio.run(body())


LINES = [{"lineage": 0, "step": step, "root": f"root {step}"} for step in range(3)]


def write_former(folder: Path, text: str) -> None:
    (folder / FORMER_FILE).write_text(text)


def test_an_older_runs_file_is_taken_over_once(tmp_path: Path) -> None:
    """Its last line was cut off by a crash: that version was never answered."""
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    write_former(tmp_path, text[:-5])

    async def body() -> None:
        store = MemoryStore()
        for _ in range(2):
            history = await VersionHistory.open(store, run_in(tmp_path))
            assert history.roots(FIRST) == {"root 1"}
            assert history.roots(VersionId(0, 2)) == frozenset()
        assert [record for _, record in await store.read("versions/run")] == LINES[:2]
        history = await VersionHistory.open(store, run_in(tmp_path))
        await history.add(policy(VersionId(0, 2), "c"))
        assert await store.last("versions/run") == 3

    asyncio.run(body())
    assert (tmp_path / FORMER_FILE).read_text() == text[:-5]


@pytest.mark.parametrize("line", ['{"lineage"}', "[]", '{"lineage": 0, "step": 1}', "3"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    write_former(tmp_path, json.dumps(LINES[0]) + f"\n{line}\n")
    with pytest.raises(InputError, match=rf"{FORMER_FILE}:2: not a version's record"):
        asyncio.run(VersionHistory.open(MemoryStore(), run_in(tmp_path)))
