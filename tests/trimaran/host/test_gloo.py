"""One thread of Gloo for all groups of a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trimaran.host.gloo import share_device

SECONDS = timedelta(seconds=20)


def make(*given: Any, **named: Any) -> Any:
    return dist.ProcessGroupGloo(dist.HashStore(), 0, 1, *given, **named)


def count_threads() -> int:
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    return sum(name.startswith("gloo_tcp_loop") for name in names)


def passes_in_a_forked_process(check: Callable[[], bool]) -> bool:
    if not (child := os.fork()):
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def have_one_thread() -> bool:
    groups = [make(SECONDS), make(timeout=SECONDS), make()]
    for group in groups:
        group.allreduce(torch.ones(2)).wait()
    timeouts = [group.options._timeout for group in groups]
    return count_threads() == 1 and timeouts == [SECONDS, SECONDS, timedelta(minutes=30)]


def has_two_threads_with_one_of_its_own() -> bool:
    options: Any = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    groups = make(SECONDS), make(options)
    return len(groups) == count_threads() == 2


def test_all_groups_of_a_process_have_one_thread_but_those_that_bring_a_device() -> None:
    share_device()
    make(SECONDS)  # whose thread a forked process has not
    assert passes_in_a_forked_process(have_one_thread)
    assert passes_in_a_forked_process(has_two_threads_with_one_of_its_own)
