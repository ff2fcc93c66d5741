"""Starting, watching and ending real runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests import marked
from trimaran.telemetry.run_files import read_json_lines

TIMEOUT_SECONDS = 480
"""Of a run that takes one to two minutes on a machine with nothing else to do."""


def start(*arguments: str | Path, run_folder_parent: Path) -> subprocess.Popen:
    """A `trimaran …` process; the mark lets a test find everything that it started."""
    return subprocess.Popen(
        [sys.executable, "-m", "commands.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, marked.MARK: str(run_folder_parent)},
    )


def listen(process: subprocess.Popen) -> list[str]:
    """What it prints, line by line as it comes: a pipe that nothing reads stops a long run."""
    lines: list[str] = []
    output = process.stdout
    assert output
    threading.Thread(target=lambda: lines.extend(output), daemon=True).start()
    return lines


def finish(process: subprocess.Popen) -> str:
    """All that it printed. Fails the test when it does not end."""
    try:
        return process.communicate(timeout=TIMEOUT_SECONDS)[0]
    finally:
        process.kill()


def trimaran(*arguments: str | Path, run_folder_parent: Path) -> tuple[int, str]:
    """Exit code and output."""
    process = start(*arguments, run_folder_parent=run_folder_parent)
    output = finish(process)
    return process.returncode, output


def train(*arguments: str | Path, run_folder_parent: Path) -> tuple[int, str]:
    return trimaran("train", *arguments, run_folder_parent=run_folder_parent)


def finished(*arguments: str | Path, parent: Path, folder: str = "runs") -> tuple[Path, str]:
    """The folder of a run that ends well, and what it printed. `folder`: in which its own is made."""
    code, output = train(*arguments, run_folder_parent=parent)
    assert code == 0, output
    return only_run(parent / folder), output


def replay(run_folder: Path, parent: Path) -> str:
    """What `trimaran replay` prints of a run that trains again to the same weights."""
    code, output = trimaran("replay", run_folder, run_folder_parent=parent)
    assert code == 0 and "the same: " in output, output
    return output


@contextmanager
def manager(
    *arguments: str | Path, run_folder_parent: Path
) -> Generator[tuple[subprocess.Popen, str]]:
    """`trimaran up …`: the process and its address."""
    process = start("up", *arguments, run_folder_parent=run_folder_parent)
    lines = listen(process)
    try:
        wait_for(lambda: any("listens on" in line for line in lines), process, "its address")
        [line] = [line for line in lines if "listens on" in line]
        yield process, line.split("listens on ")[1].split(",")[0]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, "".join(lines)
    finally:
        process.kill()


def train_killed_and_resumed(config: Path, folder: Path, run_folder_parent: Path) -> Path:
    """Killed after three steps, with all that it has started, and resumed to its end. `folder`: in
    which its own is made, which is returned."""
    process = start("train", config, run_folder_parent=run_folder_parent)
    wait_for_steps(process, folder, 3)
    process.kill()
    process.wait(30)
    assert survivors(run_folder_parent) == []
    code, output = train("--resume", only_run(folder), run_folder_parent=run_folder_parent)
    assert code == 0, output
    return only_run(folder)


def survivors(run_folder_parent: Path, seconds: float = 15) -> list[str]:
    """Command lines of processes of this test's runs that still live after `seconds`."""
    return [" ".join(marked.words(p)) for p in marked.survivors(run_folder_parent, seconds)]


def processes(run_folder_parent: Path, *words: str) -> list[psutil.Process]:
    """Processes of this test's runs whose command line holds all the words."""
    return [
        process
        for process in marked.marked(run_folder_parent)
        if all(word in marked.words(process) for word in words)
    ]


def wait_for(condition: Callable[[], object], process: subprocess.Popen, what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert process.poll() is None, f"ended before {what}: {process.communicate()[0]}"
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def wait_for_steps(process: subprocess.Popen, folder: Path, count: int) -> None:
    """Of the run in `folder`."""
    wait_for(lambda: num_steps(folder) >= count, process, f"step {count}")


def num_steps(folder: Path) -> int:
    """So far, of the run in `folder`."""
    run = find_run(folder)
    return len(rows(run, "step")) if run else 0


def rows(run_folder: Path, kind: str) -> list[dict]:
    """So far: the run may be writing the next one."""
    return [row for row in read_json_lines(run_folder / "metrics.jsonl") if row["kind"] == kind]


def only_run(folder: Path) -> Path:
    found = find_run(folder)
    assert found, f"no run in {folder}"
    return found


def find_run(folder: Path) -> Path | None:
    """None before it has begun."""
    found = sorted(folder.glob("*/config.yaml"))
    assert len(found) <= 1
    return found[0].parent if found else None
