"""One device of Gloo for all groups of a process."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from trimaran.host.gloo import share_device

GLOO: Any = dist.ProcessGroupGloo
SECONDS, HALF_AN_HOUR = timedelta(seconds=20), timedelta(minutes=30)
RUN_LOOPS = 2
"""Threads of a group's own; a device has one."""


def make(*given: Any, **named: Any) -> Any:
    return GLOO(HashStore(), 0, 1, *given, **named)


def count_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def passes_in_a_forked_process(check: Callable[[], bool]) -> bool:
    if not (child := os.fork()):
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    return os.waitpid(child, 0)[1] == 0


def have_one_device() -> bool:
    before = count_threads()
    groups = [make(timeout=SECONDS), make(timeout=SECONDS), make()]
    added = count_threads() - before
    timeouts = [group.options._timeout for group in groups]
    groups[0].allreduce(torch.ones(2)).wait()
    return added == 1 + len(groups) * RUN_LOOPS and timeouts == [SECONDS, SECONDS, HALF_AN_HOUR]


def keeps_its_device() -> bool:
    options = GLOO._Options()
    options._devices = [GLOO.create_device(hostname="127.0.0.1")]
    before = count_threads()
    group = make(options)
    return group.size() == 1 and count_threads() == before + RUN_LOOPS


def test_all_groups_of_a_process_have_one_device_but_those_that_bring_one() -> None:
    share_device()
    make()  # its device has no thread in a forked process
    assert passes_in_a_forked_process(have_one_device)
    assert passes_in_a_forked_process(keeps_its_device)
