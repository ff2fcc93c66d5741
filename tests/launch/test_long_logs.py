"""A log that became long is emptied under the process that writes to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from commands.launch.long_logs import shorten_logs
from commands.launch.service_process import Exit, ServiceProcess

WRITE = "import sys\nfor line in sys.stdin: print(line, end='', flush=True)"


def test_the_process_goes_on_at_the_start_and_the_part_before_is_kept(tmp_path: Path) -> None:
    log, short = tmp_path / "reward.log", tmp_path / "controller.log"
    short.write_text("one\n")
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", WRITE], stdin=subprocess.PIPE, stdout=file, text=True
        )
    assert process.stdin

    def write(text: str) -> None:
        assert process.stdin
        process.stdin.write(f"{text}\n")
        process.stdin.flush()
        while not log.read_text().endswith(f"{text}\n"):
            pass

    for part in ("first", "second", "third"):
        write(part * 10)
        shorten_logs(tmp_path, most=20)
        assert log.read_text() == ""
        assert (tmp_path / "reward.log.1").read_text() == f"{part * 10}\n"
    write("last")
    shorten_logs(tmp_path, most=20)
    process.stdin.close()
    process.wait(30)
    assert log.read_text() == "last\n" and short.read_text() == "one\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("controller.log", "reward.log", "reward.log.1")
    ]


def test_last_lines_are_found_in_a_log_that_was_shortened(tmp_path: Path) -> None:
    log = tmp_path / "reward.log"
    log.write_text("error: no wings\n")
    service = ServiceProcess("reward", (), {}, log)
    assert Exit(service, 1, 0.0, log_start=1000).last_lines() == ["error: no wings"]
    assert Exit(service, 1, 0.0, log_start=7).last_lines() == ["no wings"]


def test_a_log_that_cannot_be_copied_stays_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "reward.log"
    log.write_text("a line\n")
    (tmp_path / "reward.log.1").mkdir()
    shorten_logs(tmp_path, most=3)
    assert log.read_text() == "a line\n"
    assert "cannot be shortened" in caplog.text
    assert not list(tmp_path.glob("*.partial"))


def test_what_a_link_leads_to_is_left_alone(tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    (precious := tmp_path / "precious").write_text("a long line\n")
    (folder / "reward.log").symlink_to(precious)
    (folder / "controller.partial").symlink_to(precious)
    (folder / "controller.log").write_text("another long line\n")
    shorten_logs(folder, most=3)
    assert precious.read_text() == "a long line\n"
    assert [path.name for path in sorted(folder.iterdir())] == [
        *("controller.log", "controller.log.1", "reward.log")
    ]
