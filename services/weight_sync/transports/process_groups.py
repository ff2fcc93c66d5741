"""Process groups of each backend, outside torch's default group.

For HCCL this is torch_npu's process group, not the PyHcclCommunicator of
vLLM-Ascend: that one offers broadcast and all-reduce and has no way to destroy
a communicator, so that every rebuilt group would hold its driver resources
until the process ends. Only broadcast is relied on, which both of them have.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Store
from torch.distributed import ProcessGroupGloo

from trimaran.types import TransferGroup

IN_FLIGHT = 2
"""Buckets under way at the same time: one is copied or digested while the other travels."""
WATCHDOG_MARGIN = timedelta(minutes=10)
"""An accelerator group's watchdog ends the whole process; our own deadline and abort come first."""


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
    return ProcessGroupHCCL(store, rank, group.world_size, options)


MAKE_PROCESS_GROUP: dict[str, Callable[[Store, int, TransferGroup, str, timedelta], Any]] = {
    "gloo": _make_gloo,
    "nccl": _make_nccl,
    "hccl": _make_hccl,
}
"""(store, rank, group, address of the interface, timeout); accelerators choose their interface."""


def end_process_group(process_group: Any, abort: bool) -> None:
    """Of an accelerator. A gloo group ends with its last reference."""
    if not abort:
        process_group.shutdown()
    elif hasattr(process_group, "abort_hccl_comm"):
        process_group.abort_hccl_comm("trimaran")
    else:
        process_group.abort()
