"""One run of the real controller against stand-ins, and what it took.

The controller is `trimaran serve controller`, alone on one core, with all threads of gRPC and of
its store. The stand-ins, this process and the Redis server share the other core.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.control import stand_ins
from benchmarks.control.stand_ins import INSTANT, Seconds, Shape
from trimaran.ledger.ledger import read_trees
from trimaran.ledger.payloads.files import FolderPayloads
from trimaran.run.context import RunContext
from trimaran.run.environment import COMMON
from trimaran.run.network import LOOPBACK
from trimaran.store import open_store

CONTROLLER_CORES, OTHER_CORES = {0}, {1}
POLL_SECONDS = 0.1
END_SECONDS = 30.0
NUM_PROMPTS = 1000


@dataclass(frozen=True, slots=True)
class Work:
    """How many groups, in which steps.

    Example: Work(steps=20, groups_per_step=64, max_lag=1, warmup=5)
    """

    steps: int
    groups_per_step: int
    max_lag: int = 1
    warmup: int = 5
    """Steps that do not count."""
    checkpoint_every: int | None = None
    """Steps; as many as do not count where it is not given."""


@dataclass(frozen=True, slots=True)
class Outcome:
    groups_per_second: float
    cpu_seconds_per_group: float
    """Of the controller, all threads."""
    ledger_bytes_per_group: float
    """Of all records, without the payloads."""
    resident_mib: list[tuple[int, float]]
    """Of the controller, by the number of groups that had trained."""


def measure(
    folder: Path,
    shape: Shape,
    work: Work,
    store_url: str = "",
    observe: Callable[[int], None] = lambda process_id: None,
    seconds: Seconds = INSTANT,
) -> Outcome:
    """`store_url`: as in RunContext; empty for SQLite in the run folder. `observe` is told the
    controller's process once it trains. `seconds`: that the stand-ins take."""
    run_folder = folder / "run"
    run_folder.mkdir(parents=True)
    with _stand_ins(shape, seconds) as endpoints:
        _write_run(folder, run_folder, shape, work, endpoints, store_url)
        with _controller(folder, run_folder) as controller:
            found = _follow(controller, run_folder, work, observe)
    num_bytes = 0 if store_url else asyncio.run(_ledger_bytes(run_folder))
    return replace(found, ledger_bytes_per_group=num_bytes / (work.steps * work.groups_per_step))


async def _ledger_bytes(run_folder: Path) -> int:
    """As JSON, before the store and the archive compress them."""
    store = await open_store(f"sqlite:{run_folder / 'store.sqlite'}")
    payloads = FolderPayloads(run_folder / "payloads")
    records = read_trees(store, payloads, run_folder.name)
    found = sum([len(json.dumps(tree)) async for _, tree in records])
    await store.close()
    return found


@contextmanager
def _stand_ins(shape: Shape, seconds: Seconds) -> Iterator[dict[str, Any]]:
    with _process(
        stand_ins.command(shape, seconds), OTHER_CORES, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        yield json.loads(process.stdout.readline())


@contextmanager
def _controller(folder: Path, run_folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "commands.cli", "serve", "controller"]
    command += ["--config", str(folder / "run.yaml"), "--run-folder", str(run_folder)]
    with (
        (run_folder / "controller.log").open("wb") as log,
        _process(command, CONTROLLER_CORES, stdout=log, stderr=log) as process,
    ):
        yield process


@contextmanager
def _process(
    command: list[str], cores: set[int], stdout: Any, stderr: Any = None
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        ["taskset", "-c", ",".join(map(str, sorted(cores))), *command],
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=stderr,
        env=os.environ | COMMON | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_run(
    folder: Path,
    run_folder: Path,
    shape: Shape,
    work: Work,
    endpoints: dict[str, Any],
    store_url: str,
) -> None:
    prompts = (
        {"prompt": f"What is {n} + 1? " + "x" * 300, "answer": str(n)} for n in range(NUM_PROMPTS)
    )
    rows = "".join(json.dumps(prompt) + "\n" for prompt in prompts)
    (folder / "train.jsonl").write_text(rows, encoding="utf-8")
    groups_in_flight = (work.max_lag + 1) * work.groups_per_step
    config = {
        "run": {
            "steps": work.steps,
            "groups_per_step": work.groups_per_step,
            "max_lag": work.max_lag,
            "checkpoint_every": work.checkpoint_every or work.warmup,
        },
        "model": {"path": "model"},
        "data": {"train": "train.jsonl"},
        "rollout": {
            "group_size": shape.samples,
            "max_tokens": shape.tokens,
            # However few they are, the replicas take all groups.
            "max_concurrency": max(64, groups_in_flight * shape.samples // shape.replicas),
        },
        "reward": {"rules": {"exact_match": 1.0}},
        "endpoints": {**endpoints, "controller": LOOPBACK.free_address()},
    }
    if shape.turns:
        config |= {
            "environment": {
                "factory": "episodes.py:Episode",
                "max_turns": shape.turns,
                "max_tokens": shape.turns * (shape.tokens + 100),
                "max_episodes": 512,
            },
            "reward": {},
        }
    if store_url:
        RunContext("run", run_folder, store_url).write()
    (folder / "run.yaml").write_text(json.dumps(config), encoding="utf-8")


def _follow(
    process: subprocess.Popen[bytes],
    run_folder: Path,
    work: Work,
    observe: Callable[[int], None],
) -> Outcome:
    """Watch the rows of the steps as they come."""
    controller = psutil.Process(process.pid)
    rows, marks, memory = _Rows(run_folder / "metrics.jsonl"), [], []
    while True:
        ended = process.poll() is not None
        steps = rows.read()
        if steps and not ended:
            step, when = steps[-1]["step"], steps[-1]["time"]
            if step >= work.warmup and not marks:
                observe(process.pid)
            if step >= work.warmup:
                times = controller.cpu_times()
                marks.append((step, when, time.time(), times.user + times.system))
                memory.append((step * work.groups_per_step, controller.memory_info().rss / 2**20))
        if ended:
            break
        time.sleep(POLL_SECONDS)
    if process.returncode or rows.last != work.steps:
        log = (run_folder / "controller.log").read_text(encoding="utf-8")
        raise RuntimeError(
            f"the controller ended at step {rows.last}, exit {process.returncode}:\n{log[-3000:]}"
        )
    (first, began, _, cpu_before), (last, done, _, cpu_after) = marks[0], marks[-1]
    groups = (last - first) * work.groups_per_step
    return Outcome(groups / (done - began), (cpu_after - cpu_before) / groups, 0.0, memory)


class _Rows:
    """What has been added to metrics.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path, self._read, self.last = path, 0, 0

    def read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        rows = [row for row in map(json.loads, whole.splitlines()) if row["kind"] == "step"]
        self.last = rows[-1]["step"] if rows else self.last
        return rows
