"""What a run has left behind, and what is chosen of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from services.controller.reporting import events
from services.controller.reporting.events import RunLog
from services.manager.run_data.choice import Choice, Spot, arrange
from services.manager.run_data.question_images import question_images
from services.manager.run_data.results import (
    list_checkpoints,
    saved_checkpoints,
    validation_samples,
)
from tests.configs import configure
from tests.extending.memory_store import MemoryStore
from trimaran.config import RunConfig
from trimaran.errors import NotFoundError
from trimaran.run.runs import EventKind, Run, RunState, events_stream


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_EVENTS", 3)
    monkeypatch.setattr(events, "TRIM_EVERY", 1)


async def test_checkpoints_are_listed_though_their_events_are_gone(tmp_path: Path) -> None:
    store, run = MemoryStore(), Run("run", RunState.RUNNING, 0, 100)
    log = RunLog(store, run, await store.next_epoch("run"), patience=1.0)
    async with log.writing():
        for step in range(1, 9):
            log.emit(EventKind.STEP, step=step)
            if step % 2 == 0:
                log.emit(EventKind.CHECKPOINT, text=f"step-{step:05}", root=f"{step}f")
            await log.written()
    kinds = [tree["kind"] for _, tree in await store.read(events_stream("run"))]
    assert kinds == ["step", "step", "checkpoint"]
    saved = tmp_path / "checkpoints" / "step-00008"
    saved.mkdir(parents=True)
    state = json.dumps({"step": 8, "root": "8f", "score": 0.5})
    (saved / "state.json").write_text(state)
    (saved / "shard-0").write_bytes(b"0" * 100)
    found = list_checkpoints(tmp_path, await saved_checkpoints(store, "run"))
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


REWARDS = ((1.0,), (0.0,), (0.25, 0.75, None), (1.0, 0.5), (None, None))
SPOTS = [
    Spot(unit, number, unit < 2, reward)
    for unit, rewards in enumerate(REWARDS)
    for number, reward in enumerate(rewards)
]


@pytest.mark.parametrize(
    ("choice", "places"),
    [
        (Choice(), list(range(9))),
        (Choice(order="highest"), [0, 5, 6, 3, 2, 4, 1, 7, 8]),
        (Choice(order="lowest"), [1, 2, 3, 4, 6, 5, 0, 7, 8]),
        (Choice("greedy"), [0, 1]),
        (Choice("sampled", "lowest", low=0.5), [3, 6, 5]),
        (Choice(low=0.25, high=0.5), [2, 6]),
        (Choice(faulted=True), [4, 7, 8]),
        (Choice(faulted=True, high=1.0), []),
    ],
)
def test_what_is_chosen_and_in_which_order(choice: Choice, places: list[int]) -> None:
    assert arrange(SPOTS, choice) == places


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    """Its dataset's third line is another prompt, without images; the second one is blank."""
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.jpg")
    rows = [
        {"prompt": text, "answer": "", "seen": seen}
        for text, seen in (("?", ["red.jpg"]), ("!", []))
    ]
    (tmp_path / "held.jsonl").write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    held = {"path": str(tmp_path / "held.jsonl"), "image_key": "seen"}
    return configure(data={"train": "t", "validation": [held], "min_pixels": 1})


def test_they_are_png_files_of_the_rows_own(config: RunConfig) -> None:
    [data] = question_images(config, "held.jsonl:1")
    with Image.open(io.BytesIO(data)) as image:
        assert (image.format, image.size) == ("PNG", (40, 30))


@pytest.mark.parametrize("prompt_id", ["held.jsonl:2", "held.jsonl:99", "other.jsonl:1"])
def test_a_prompt_that_is_not_there_any_more_has_none(config: RunConfig, prompt_id: str) -> None:
    with pytest.raises(NotFoundError, match=prompt_id):
        question_images(config, prompt_id)
