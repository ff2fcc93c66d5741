"""What a run has left behind, where most of its events are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from services.controller.reporting import events
from services.controller.reporting.events import RunLog
from services.manager.run_data.choice import Choice
from services.manager.run_data.results import (
    list_checkpoints,
    saved_checkpoints,
    validation_samples,
)
from tests.extending.memory_store import MemoryStore
from trimaran.run.runs import EventKind, Run, RunState, events_stream


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_EVENTS", 3)
    monkeypatch.setattr(events, "TRIM_EVERY", 1)


def test_checkpoints_are_listed_though_their_events_are_gone(tmp_path: Path) -> None:
    async def body() -> MemoryStore:
        store = MemoryStore()
        run = Run("run", RunState.RUNNING, 0, 100)
        log = RunLog(store, run, await store.next_epoch("run"), patience=1.0)
        async with log.writing():
            for step in range(1, 9):
                log.emit(EventKind.STEP, step=step)
                if step % 2 == 0:
                    log.emit(EventKind.CHECKPOINT, text=f"step-{step:05}", root=f"{step}f")
                await log.written()
        kinds = [tree["kind"] for _, tree in await store.read(events_stream("run"))]
        assert kinds == ["step", "step", "checkpoint"]
        return store

    store = asyncio.run(body())
    saved = tmp_path / "checkpoints" / "step-00008"
    saved.mkdir(parents=True)
    state = json.dumps({"step": 8, "root": "8f", "score": 0.5})
    (saved / "state.json").write_text(state)
    (saved / "shard-0").write_bytes(b"0" * 100)
    found = list_checkpoints(tmp_path, asyncio.run(saved_checkpoints(store, "run")))
    assert [(c.step, c.path, c.root, c.kept) for c in found] == [
        (2, "step-00002", "2f", False),
        (4, "step-00004", "4f", False),
        (6, "step-00006", "6f", False),
        (8, str(saved), "8f", True),
    ]
    assert (found[-1].score, found[-1].num_bytes) == (0.5, 100 + len(state))
    assert found[0].score is None and all(each.saved_at > 1e9 for each in found)


def test_any_answer_of_a_validation_is_found_also_once_the_file_is_another(tmp_path: Path) -> None:
    path = tmp_path / "samples" / "step-00007.jsonl"
    path.parent.mkdir()
    for said in ("é", "second"):
        rows = [
            {"prompt": "", "answer": "", "completions": [f"{said} {n}" * n], "rewards": [n / 9]}
            for n in range(9)
        ]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        found, count = validation_samples(tmp_path, 7, 2, 5, choice=Choice(order="highest"))
        assert [(one.answer, one.place) for one in found] == [
            (f"{said} 3" * 3, 3),
            (f"{said} 2" * 2, 2),
        ]
        assert count == 9
