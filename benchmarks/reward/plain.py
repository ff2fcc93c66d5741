"""The other side: the same library in plain processes, without us."""

from __future__ import annotations

import importlib
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, Self

import psutil

Job = tuple[str, str]
"""Text and reference answer."""
START_SECONDS, CALL_SECONDS = 60.0, 1800.0


class PlainProcesses:
    """Each holds its share of the jobs before the clock starts. Context manager."""

    def __init__(self, checker: str, groups: Sequence[Sequence[Job]], num_processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for number in range(num_processes):
            ours, theirs = context.Pipe()
            share = [job for group in groups[number::num_processes] for job in group]
            process = context.Process(target=_serve, args=(theirs, checker, share), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            _receive(pipe, START_SECONDS)

    def run(self) -> float:
        """Seconds until the last has checked its share; once."""
        begin = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(None)
        for pipe in self._pipes:
            _receive(pipe, CALL_SECONDS)
        return time.perf_counter() - begin

    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(psutil.Process(process.pid)) for process in self._processes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join(10)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _receive(pipe: Connection, timeout: float) -> Any:
    if not pipe.poll(timeout):
        raise TimeoutError(f"a plain process did not answer within {timeout:g} s")
    return pipe.recv()


def _serve(pipe: Connection, checker: str, jobs: list[Job]) -> None:
    module, _, name = checker.partition(":")
    check = getattr(importlib.import_module(module), name)
    check(*jobs[0])  # imports and first tables
    pipe.send(True)
    pipe.recv()
    for text, answer in jobs:
        check(text, answer)
    pipe.send(True)
