"""Measures one link by Gloo, NCCL or HCCL, as two processes: `python -m services.weight_sync.transports.link_probe`.

    rank 0     --device cpu --address HOST                    prints the port on which rank 1 finds it
    rank 1     --device cpu --address HOST --meet HOST:PORT   prints {"seconds": ..., "bytes_per_second": ...}

`--device` is cpu, cuda or npu, and with it goes the library. The group is made as the weight plane makes its
own (`process_groups.py`): Gloo over the given address, the others on the first device that this process
sees, over the interface that the environment names.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import IO, Any

import torch
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import BroadcastOptions

from services.weight_sync.transports.process_groups import MAKE_PROCESS_GROUP, end_process_group
from services.weight_sync.transports.rendezvous import host_tcp_store
from trimaran.device import BACKENDS, Device, pick
from trimaran.network import Host, split
from trimaran.types import TransferGroup

TIMEOUT = timedelta(seconds=30)
NUM_ROUNDS = 20
NUM_SENT = 8
SIZE = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=BACKENDS, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--meet", default="")
    options = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    told = take_stdout()
    device, rank = pick(options.device), 1 if options.meet else 0
    device.activate()
    if options.meet:
        store: Store = TCPStore(*split(options.meet), 2, False, TIMEOUT, False)
    else:
        listener = Host(options.address).listen()
        print(json.dumps({"port": listener.getsockname()[1]}), file=told, flush=True)
        store = host_tcp_store(listener, TIMEOUT.total_seconds())
    group = TransferGroup(group_id=1, nonce="", world_size=2, rendezvous="")
    make = MAKE_PROCESS_GROUP[device.backend]
    process_group = make(store, rank, group, options.address, TIMEOUT)
    seconds = _time(process_group, device, 1, 2 * NUM_ROUNDS)
    each = _time(process_group, device, SIZE, NUM_SENT)
    if rank == 1:
        result = {"seconds": seconds * 2, "bytes_per_second": SIZE / each}
        print(json.dumps(result), file=told, flush=True)
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"], TIMEOUT)  # rank 0 holds the store
    if not device.on_host:
        end_process_group(device.backend, process_group, abort=False)


def take_stdout() -> IO[str]:
    """For our lines alone. What libraries print there, as NCCL does by NCCL_DEBUG, goes to stderr."""
    own = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return own


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _time(process_group: Any, device: Device, size: int, count: int) -> float:
    """Seconds of one broadcast, with the two ranks as senders in turn after a first round. An accelerator
    keeps their order: each begins when the one before it has arrived."""
    tensor = torch.zeros(size, dtype=torch.uint8, device=device.torch_device())
    for sender in (0, 1):
        _broadcast(process_group, tensor, sender)
    device.synchronize()
    start = time.monotonic()
    for turn in range(count):
        _broadcast(process_group, tensor, turn % 2)
    device.synchronize()
    return (time.monotonic() - start) / count


def _broadcast(process_group: Any, tensor: torch.Tensor, sender: int) -> None:
    options = BroadcastOptions()
    options.rootRank = sender
    options.rootTensor = 0
    process_group.broadcast([tensor], options).wait(TIMEOUT)


if __name__ == "__main__":
    main()
