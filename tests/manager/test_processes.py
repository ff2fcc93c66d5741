"""Real processes: managers and launchers that are killed and frozen. The runs are scripted."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.manager import scripted_manager
from tests.manager.fakes import specification
from trimaran.run.context import RunContext
from trimaran.run.launchers import MARK, LocalLauncher, Presence
from trimaran.v1 import run_pb2 as pb
from trimaran.v1 import run_pb2_grpc

pytestmark = pytest.mark.e2e
DEADLINE = 60.0
ROOT = Path(__file__).parents[2]


class ManagerProcess:
    def __init__(self, folder: Path, *store: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", scripted_manager.__name__, str(folder), *store],
            stdout=subprocess.PIPE,
            stderr=(folder.parent / "manager.log").open("ab"),
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.pid = self._process.pid
        assert self._process.stdout
        self.address = self._process.stdout.readline().strip()
        self.stub: Any = run_pb2_grpc.RunServiceStub(grpc.insecure_channel(self.address or "x:1"))

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        return self._process.wait(DEADLINE)

    def get(self, run_id: str) -> pb.Run:
        return self.stub.GetRun(pb.GetRunRequest(run_id=run_id), timeout=DEADLINE).run

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Generator[Path]:
    folder = tmp_path / "runs"
    folder.mkdir()
    yield folder
    for _ in range(3):  # one that was being started has no mark yet
        for pid in marked(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)


@contextmanager
def manager(folder: Path, *store: str) -> Iterator[ManagerProcess]:
    """`store`: its URL, where it is not a file in the folder."""
    process = ManagerProcess(folder, *store)
    try:
        yield process
    finally:
        process.kill()


def marked(folder: Path, word: str = "") -> list[int]:
    """Processes of the runs in this folder."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                environment = (entry / "environ").read_bytes()
                is_ours = f"TRIMARAN_LAUNCHED={folder}/".encode() in environment
                if is_ours and word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def until(is_so: Callable[[], Any]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def submit(process: ManagerProcess, folder: Path, request_id: str = "r") -> str:
    config = specification(folder.parent, trainer={"device": "cpu"}, rollout={"device": "cpu"})
    request = pb.CreateRunRequest(request_id=request_id, config=config)
    run_id = process.stub.CreateRun(request, timeout=DEADLINE).run.run_id
    until(lambda: process.get(run_id).state == pb.Run.STATE_RUNNING)
    return run_id


def test_a_killed_manager_disturbs_no_run_and_the_next_one_finds_all(folder: Path) -> None:
    with manager(folder) as first:
        ids = [submit(first, folder, str(number)) for number in range(3)]
        launchers = sorted(marked(folder, "scripted_launch"))
        first.kill()
    with manager(folder) as second:
        for run_id in ids:
            run = second.get(run_id)
            step = run.step
            assert (run.state, run.starts) == (pb.Run.STATE_RUNNING, 1)
            until(lambda run_id=run_id, step=step: second.get(run_id).step > step)
        assert sorted(marked(folder, "scripted_launch")) == launchers
        for run_id in ids:
            second.stub.CancelRun(pb.CancelRunRequest(run_id=run_id))
        for run_id in ids:
            until(lambda run_id=run_id: second.get(run_id).state == pb.Run.STATE_CANCELLED)
    assert marked(folder) == []


def test_what_a_killed_launcher_and_its_guardian_left_behind_is_killed(folder: Path) -> None:
    run, other = (RunContext(name, folder / name, "sqlite:unused") for name in ("one", "other"))
    launcher = LocalLauncher(os.environ)
    sleepers = [
        subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(context.folder)})
        for context in (run, other)
    ]
    try:
        sleepers[0].send_signal(signal.SIGSTOP)
        found = asyncio.run(launcher.find([run, other]))
        assert found == dict.fromkeys(("one", "other"), Presence.ENDING)
        asyncio.run(launcher.kill(run))
        assert sleepers[0].wait(DEADLINE) == -signal.SIGKILL
        assert sleepers[1].poll() is None  # another run's
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_one_manager_a_store_and_a_frozen_one_ends_when_it_was_replaced(folder: Path) -> None:
    with manager(folder) as first:
        run_id = submit(first, folder)
        with manager(folder) as refused:
            assert refused.wait() == 1
        assert "a manager has the store" in (folder.parent / "manager.log").read_text()
        first.send(signal.SIGSTOP)
        with manager(folder) as second:  # it waits for the lease to end
            assert second.get(run_id).state == pb.Run.STATE_RUNNING
            first.send(signal.SIGCONT)
            assert first.wait() == 1
            assert "taken over" in (folder.parent / "manager.log").read_text()
            step = second.get(run_id).step
            until(lambda: second.get(run_id).step > step)
            assert second.get(run_id).starts == 1
