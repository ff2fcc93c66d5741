from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trimaran.errors import InternalError
from trimaran.telemetry.metrics import GREEDY_REWARD, REWARD_MEAN, find_metric
from trimaran.telemetry.run_files import (
    JsonLines,
    MetricsWriter,
    OncePerSecond,
    TimelineWriter,
    read_json_lines,
    setup_logging,
)


def test_a_metrics_row_stands_in_the_file_and_in_tensorboard(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path)
    metrics.write("step", 1, {REWARD_MEAN: 0.5, "trainer/loss": float("nan")}, "the loss is nan")
    metrics.write("validation", 1, {GREEDY_REWARD: 1.0})
    metrics.close()
    first, second = read_json_lines(tmp_path / "metrics.jsonl")
    assert (first["kind"], first["step"]) == ("step", 1)
    assert (first[REWARD_MEAN], first["trainer/loss"]) == (0.5, None)
    assert first["nonfinite"] == "the loss is nan" and "nonfinite" not in second
    assert (second["kind"], second[GREEDY_REWARD]) == ("validation", 1.0)
    assert first["time"] <= second["time"]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (scalar,) = events.Scalars(REWARD_MEAN)
    assert (scalar.step, scalar.value) == (1, 0.5)
    described = events.SummaryMetadata(REWARD_MEAN).summary_description
    assert described == find_metric(REWARD_MEAN).description


def test_a_row_with_an_undeclared_key_is_an_error(tmp_path: Path) -> None:
    metrics = MetricsWriter(tmp_path)
    with pytest.raises(InternalError, match=r"'trainer/lost' is not declared; .*metrics\.py"):
        metrics.write("step", 1, {REWARD_MEAN: 0.5, "trainer/lost": 1.0})
    metrics.close()
    assert read_json_lines(tmp_path / "metrics.jsonl") == []


def test_a_span_is_recorded_also_when_its_block_fails(tmp_path: Path) -> None:
    timeline = TimelineWriter(tmp_path)
    timeline.add("rollout-0", "generating", 1.0, 2.0, 7)
    with pytest.raises(ZeroDivisionError), timeline.span("trainer-0", "training", 7):
        _ = 1 / 0
    timeline.close()
    first, second = read_json_lines(tmp_path / "timeline.jsonl")
    assert first == {
        "process": "rollout-0",
        "activity": "generating",
        "start": 1.0,
        "end": 2.0,
        "step": 7,
    }
    assert (second["process"], second["activity"]) == ("trainer-0", "training")
    assert second["start"] <= second["end"]


def test_a_row_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_json_lines(path) == []
    path.write_text('{"a": 1}\n{"a": 2')
    assert read_json_lines(path) == [{"a": 1}]


class FullDisk:
    """Of `os.write`: takes `room` bytes, half a row if need be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room, self._write = 10**9, os.write
        monkeypatch.setattr("trimaran.host.append_file.os.write", self.write)

    def write(self, file: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        number = self._write(file, bytes(data[: self.room]))
        self.room -= number
        return number


@pytest.mark.parametrize("room", [0, 30, 250])
def test_rows_that_find_no_room_wait_and_stand_in_order_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk = FullDisk(monkeypatch)
    metrics, timeline = MetricsWriter(tmp_path), TimelineWriter(tmp_path)
    disk.room = room
    for step in (1, 2, 3):
        metrics.write("step", step, {REWARD_MEAN: step / 4})
        timeline.add("reward", "scoring", 0.0, 1.0, step)
    for files in (metrics, timeline):
        with pytest.raises(OSError, match="No space left"):
            files.flush()
    disk.room = 10**9
    metrics.write("step", 4, {REWARD_MEAN: 1.0})
    for files in (metrics, timeline):
        files.flush()
        files.close()
    assert [row["step"] for row in read_json_lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]
    assert [row["step"] for row in read_json_lines(tmp_path / "timeline.jsonl")] == [1, 2, 3]
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(s.step, s.value) for s in events.Scalars(REWARD_MEAN)] == [
        *((1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)),
    ]


def test_another_fault_of_the_disk_is_no_full_disk(tmp_path: Path) -> None:
    rows = JsonLines(tmp_path / "rows.jsonl")
    rows.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        rows.append({"a": 1})


@pytest.mark.parametrize("torn", ["", '{"a": 2', "x" * 10_000])
@pytest.mark.parametrize("whole", ["", '{"a": 0}\n{"a": 1}\n'])
def test_what_a_writer_that_died_left_half_is_dropped(
    tmp_path: Path, whole: str, torn: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(whole + torn)
    rows = JsonLines(path)
    rows.append({"a": 3})
    rows.close()
    assert path.read_text() == whole + '{"a": 3}\n'


def test_a_log_on_a_full_disk_ends_no_process() -> None:
    """Its lines are lost; a record is not, since it stands elsewhere."""
    code = """
import logging, warnings
from trimaran.telemetry.run_files import setup_logging
setup_logging("controller")
for number in range(1000):
    logging.getLogger("services.controller").warning("held: the disk is full")
    warnings.warn("something")
print("alive")
"""
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_a_failure_that_is_met_a_thousand_times_is_one_line_a_second() -> None:
    now = 0.0
    once = OncePerSecond(lambda: now)

    def passes(text: str, level: int = logging.WARNING) -> bool:
        return once.filter(logging.LogRecord("a", level, "", 1, "%s", (text,), None))

    assert [passes("no files") for _ in range(1000)] == [True] + [False] * 999
    assert passes("no room") and passes("no files", logging.INFO)
    now = 1.0
    assert passes("no files") and not passes("no files")


def test_each_of_our_packages_logs_what_happens() -> None:
    """Libraries only what goes wrong."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    for name in packages:
        logging.getLogger(name).setLevel(logging.NOTSET)
    setup_logging("launcher")
    assert "commands" in packages
    assert all(logging.getLogger(f"{name}.part").isEnabledFor(logging.INFO) for name in packages)
    assert not logging.getLogger("library").isEnabledFor(logging.INFO)
