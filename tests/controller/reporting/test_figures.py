from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import image

from services.controller.reporting.figures import (
    draw_curve,
    draw_timeline,
    last_by_step,
    read_newest,
    step_ends,
)
from trimaran.telemetry import metrics as keys
from trimaran.telemetry.run_files import MetricsWriter, TimelineWriter


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    metrics, timeline = MetricsWriter(tmp_path), TimelineWriter(tmp_path)
    for step in range(1, 4):
        values = {keys.REWARD_MEAN: step / 4, keys.LENGTH_MEAN: 20.0}
        metrics.write("step", step, values)
        metrics.write("validation", step, {keys.GREEDY_REWARD: float("nan")})
        timeline.add("rollout-0", "generating", step, step + 0.5, step)
        timeline.add("trainer-0", "training", step + 0.5, step + 1, step)
    metrics.close()
    timeline.close()
    return tmp_path


def test_the_pictures_are_pictures(run_folder: Path) -> None:
    for picture in (draw_curve(run_folder), draw_timeline(run_folder)):
        height, width, _ = image.imread(picture).shape
        assert width > height > 200
    assert {path.name for path in run_folder.glob("*.png")} == {"curve.png", "timeline.png"}


def test_of_a_long_timeline_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    path.write_text("".join(f'{{"step": {step}}}\n' for step in range(9)) + '{"step"')
    assert read_newest(path, 3) == [{"step": 6}, {"step": 7}, {"step": 8}]


def test_the_timeline_shows_each_activity_in_its_colour_and_idle_time(run_folder: Path) -> None:
    pixels = image.imread(draw_timeline(run_folder))[:, :, :3]
    for color in ((0x2A, 0x6F, 0xBB), (0x2E, 0x8B, 0x57), (0xEC, 0xEF, 0xF2)):
        share = (abs(pixels - [c / 255 for c in color]).max(axis=2) < 0.01).mean()
        assert share > 0.02, color


def test_a_run_without_rows_gives_empty_pictures(tmp_path: Path) -> None:
    assert draw_curve(tmp_path).exists()
    assert draw_timeline(tmp_path).exists()


def test_of_a_step_that_was_done_twice_the_last_row_counts() -> None:
    rows = [{"step": 2, "x": 1}, {"step": 1, "x": 2}, {"step": 2, "x": 3}]
    assert [row["x"] for row in last_by_step(rows)] == [2, 3]


def test_a_step_ends_with_its_slowest_rank() -> None:
    spans = [
        {"activity": "training", "step": 1, "end": 5.0},
        {"activity": "training", "step": 1, "end": 4.0},
        {"activity": "generating", "step": 1, "end": 9.0},
    ]
    assert step_ends(spans) == {1: 5.0}
