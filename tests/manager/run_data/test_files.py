"""What clients are shown of a run's logs and of its timeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.manager.pages.run.timeline import MOST_SPANS, drawn
from services.manager.run_data import timeline
from services.manager.run_data.log_files import LogFile
from services.manager.run_data.timeline import Span, Timeline, read_timeline
from trimaran.telemetry.run_files import TIMELINE_NAME, TimelineWriter


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("at redis://me:pw@host:1/0", "at redis://me:***@host:1/0"),
        ("at redis://:pw@host", "at redis://:***@host"),
        ("a,b=redis://u:pw@h redis://u:pw@h", "a,b=redis://u:***@h redis://u:***@h"),
        ("Authorization: Bearer abc", "Authorization: Bearer ***"),
        ("password = abc, x", "password = ***, x"),
        ("see https://host/a:b", "see https://host/a:b"),
    ],
)
def test_no_line_shows_what_a_library_wrote_of_a_secret(
    tmp_path: Path, line: str, shown: str
) -> None:
    (tmp_path / "a.log").write_text(line + "\n")
    assert LogFile(tmp_path / "a.log").tail(1).lines == [shown]


def _write(folder: Path, count: int) -> Path:
    """Step n generates from 10 n to 10 n + 6 and trains until 10 n + 9."""
    writer = TimelineWriter(folder)
    for step in range(1, count + 1):
        writer.add("rollout-0", "generating", 10.0 * step, 10.0 * step + 6, step)
        writer.add("trainer-0", "training", 10.0 * step + 6, 10.0 * step + 9, step)
    writer.close()
    return folder / TIMELINE_NAME


def test_a_window_is_found_in_a_long_file(tmp_path: Path) -> None:
    path = _write(tmp_path, 5000)
    with path.open("a") as file:
        file.write('{"process": "rollout-0", "act')  # being written
    last = read_timeline(path, 100.0, 0.0)
    assert (last.first, last.start, last.end) == (10.0, 49909.0, 50009.0)
    assert sorted({span.step for span in last.spans}) == list(range(4990, 5001))
    middle = read_timeline(path, 100.0, 20_005.0)
    assert sorted({span.step for span in middle.spans}) == list(range(1990, 2001))
    assert len(read_timeline(path, 0.0, 0.0).spans) == 10_000
    assert read_timeline(tmp_path / "none", 100.0, 0.0) == Timeline()


def test_of_too_long_a_window_its_end_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path, 5000)
    monkeypatch.setattr(timeline, "MOST_BYTES", 1 << 16)
    found = read_timeline(path, 0.0, 0.0)
    assert found.first == 10.0 and found.start > 40_000.0 and found.end == 50_009.0
    assert all(span.end >= found.start for span in found.spans)


def test_what_is_narrower_than_a_pixel_is_drawn_together() -> None:
    spans = [Span("rollout-0", "generating", i / 10, i / 10 + 0.05, i) for i in range(100_000)]
    wide = Span("trainer-0", "training", 100.0, 5000.0, 7)
    picture = drawn(Timeline((*spans, wide), 0.0, 10_000.0))
    assert picture["lanes"] == ["rollout-0", "trainer-0"] and len(picture["spans"]) < MOST_SPANS
    lane, activity, start, length, first, last, share = picture["spans"][0]
    assert (lane, activity, start, first) == (0, 0, 0.0, 0)
    assert 5 < length < 10 and last > 50 and share == pytest.approx(0.5, abs=0.01)
    assert picture["spans"][-1] == [1, 1, 100.0, 4900.0, 7, 7, 1.0]
