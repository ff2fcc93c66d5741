"""One thread of Gloo for all process groups of a process.

torch gives each group a device of its own, whose thread wakes a hundred times a second for as long as the group lives.
megatron-core makes 18 groups for a single rank and a vLLM core 13; `make bench-trainer ONLY=idle_groups` measures what
their wakeups cost a step.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any


@functools.cache
def share_device() -> None:
    """Groups that this process makes from here on have one device, and those of processes forked from it one each.

    A group whose options are given keeps their devices.
    """
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo
    make = gloo.__init__

    def init(
        self: Any,
        store: Any,
        rank: int,
        size: int,
        options: Any = None,
        timeout: timedelta = timedelta(minutes=30),
    ) -> None:
        if options is None:
            options = gloo._Options()
            options._timeout = timeout
            options._devices = _devices(os.getpid())
            options._threads = 2 * len(options._devices)
        make(self, store, rank, size, options)

    gloo.__init__ = init


@functools.cache
def _devices(process: int) -> list[Any]:
    """As torch chooses them. A forked process has none of its parent's threads, so it makes its own."""
    from torch.distributed import ProcessGroupGloo

    gloo: Any = ProcessGroupGloo
    names = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not names:
        return [gloo.create_default_device()]
    return [gloo.create_device(interface=name) for name in names.split(",")]
