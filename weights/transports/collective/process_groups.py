"""Process groups of each backend, outside torch's default group.

For HCCL this is torch_npu's process group, not the PyHcclCommunicator of
vLLM-Ascend: that one offers broadcast and all-reduce and has no way to destroy
a communicator, so that every rebuilt group would hold its driver resources
until the process ends. Only broadcast is relied on, which both of them have.

What the backends do after an error was read in torch (ProcessGroupNCCL; Gloo was
run) and in torch_npu 2.10 (ProcessGroupHCCL, OptionsManager):

    ASYNC_ERROR_HANDLING  0 does nothing, 1 and 3 end the whole process from the
                          watchdog's thread, 2 logs, and on NCCL aborts the
                          communicator. NCCL's default is 3, HCCL's 1. A group
                          reads it when it is made.
    Work.is_completed()   also True after an error
    Work.wait()           Gloo and NCCL raise the error; HCCL says nothing
    Work.is_success()     answers on HCCL; on NCCL it raises NotImplementedError
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo

from trimaran.types import TransferGroup

IN_FLIGHT = 2
"""Buckets under way at the same time, at most: one is copied or digested while the other travels."""
WATCHDOG_MARGIN = timedelta(minutes=10)
"""Our own deadline and abort come before those of an accelerator group's watchdog."""
SPARE_PROCESS = "2"
"""The value of the variables named ASYNC_ERROR_HANDLING."""
_making = threading.Lock()


def _make_gloo(
    store: Store, rank: int, group: TransferGroup, address: str, timeout: timedelta
) -> Any:
    gloo: Any = ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timeout
    options._threads = IN_FLIGHT
    # Named, because gloo otherwise listens on whatever address the host's name has.
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    return ProcessGroupGloo(store, rank, group.world_size, options)


def _make_nccl(
    store: Store, rank: int, group: TransferGroup, address: str, timeout: timedelta
) -> Any:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout + WATCHDOG_MARGIN
    with _variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", SPARE_PROCESS):
        return ProcessGroupNCCL(store, rank, group.world_size, options)


def _make_hccl(
    store: Store, rank: int, group: TransferGroup, address: str, timeout: timedelta
) -> Any:
    """As torch_npu 2.10 makes its own (torch_npu/_init/registry/distributed.py)."""
    from torch_npu._C._distributed_c10d import ProcessGroupHCCL  # pyright: ignore

    options = ProcessGroupHCCL.Options()
    options.is_high_priority_stream = False
    options._timeout = timeout + WATCHDOG_MARGIN
    options.global_ranks_in_group = list(range(group.world_size))
    options.group_id = f"trimaran-{group.group_id}-{group.nonce}"
    with _variable("HCCL_ASYNC_ERROR_HANDLING", SPARE_PROCESS):
        return ProcessGroupHCCL(store, rank, group.world_size, options)


@contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment while a group is made.

    Not for the whole process: nothing checks whether the collectives of Megatron
    or of the engine have failed, so there an error has to end the process.
    """
    with _making:
        former = os.environ.get(name)
        os.environ[name] = value
        try:
            yield
        finally:
            if former is None:
                del os.environ[name]
            else:
                os.environ[name] = former


MAKE_PROCESS_GROUP: dict[str, Callable[[Store, int, TransferGroup, str, timedelta], Any]] = {
    "gloo": _make_gloo,
    "nccl": _make_nccl,
    "hccl": _make_hccl,
}
"""(store, rank, group, address of the interface, timeout); accelerators choose their interface."""


def end_work(backend: str, work: Any) -> None:
    """Look at a work that is completed. Raises RuntimeError when it has failed."""
    if backend == "hccl" and not work.is_success():
        raise RuntimeError("HCCL reports a failed collective; torch_npu's log has its reason")
    work.wait()


def end_process_group(backend: str, process_group: Any, abort: bool) -> None:
    """End an accelerator's group. A gloo group ends with its last reference.

    So does an aborted HCCL group: its destructor destroys the communicators
    without waiting for their streams, as `abort_hccl_comm` does. But that one
    keeps Python's global lock meanwhile, and where it hangs the whole process hangs.
    """
    if not abort:
        process_group.shutdown()
    elif backend == "nccl":
        process_group.abort()
