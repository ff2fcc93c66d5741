"""What `trimaran replay` trains again: every committed step, or a clear word on what is missing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.controller.resuming.retraining import find_replayable, recorded_steps, train_again
from tests.controller.fakes import RUN_ID, FakeTrainer, make_config
from tests.controller.resuming.test_resume import crash_after_step, run_world
from trimaran.errors import InputError
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.store.sqlite import SqliteStore

RUN = {"steps": 3, "max_lag": 1, "checkpoint_every": 100, "keep_payloads": "all"}


async def replay(folder: Path, salt: str = "", start: int = 0) -> list[tuple[int, bool]]:
    """(step, reached its recorded root) of each."""
    store, payloads = SqliteStore(folder / "store.sqlite"), FolderPayloads(folder / "payloads")
    trainer: Any = FakeTrainer([], {0: "root-0"})
    trainer.salt = salt
    found: list[tuple[int, bool]] = []
    try:
        plan = await find_replayable(read_trees(store, payloads, RUN_ID), payloads, start)
        trees = read_trees(store, payloads, RUN_ID)
        async for step, entry in recorded_steps(RUN_ID, trees, plan.replayed):
            assert entry.version
            lineage = entry.version.lineage
            again = await train_again(payloads.read, trainer, step, entry, lineage, 10.0)
            found.append((step, again.is_same))
        return found
    finally:
        await store.close()


def test_an_asynchronous_run_is_trained_again(tmp_path: Path) -> None:
    run_world(tmp_path, make_config(run=RUN))
    assert asyncio.run(replay(tmp_path)) == [(1, True), (2, True), (3, True)]
    assert asyncio.run(replay(tmp_path, salt="another kernel")) == [
        (step, False) for step in (1, 2, 3)
    ]


def test_a_run_that_branched_is_compared_with_its_last_roots(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    config = make_config(run=RUN)
    run_world(tmp_path / "whole", config)
    crash_after_step(tmp_path / "whole", 2, tmp_path / "crash")
    run_world(tmp_path / "crash", config, salt="another kernel")
    again = asyncio.run(replay(tmp_path / "crash", salt="another kernel"))
    assert again == [(1, True), (2, True), (3, True)]


def test_what_is_missing_is_said_before_anything_trains(tmp_path: Path) -> None:
    run_world(tmp_path, make_config(run=RUN))
    with pytest.raises(InputError, match="--from 3: the run has committed 3 steps"):
        asyncio.run(replay(tmp_path, start=3))
    for path in (tmp_path / "payloads").iterdir():
        path.unlink()
    with pytest.raises(InputError, match="steps 1 to 3: payloads of 3 of them are no longer kept"):
        asyncio.run(replay(tmp_path))
