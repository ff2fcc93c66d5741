"""Measures one link by Gloo, as two processes: `python -m services.weight_sync.transports.link_probe`.

    rank 0     --address HOST                    prints the port on which rank 1 finds it
    rank 1     --address HOST --meet HOST:PORT   prints {"seconds": ..., "bytes_per_second": ...}

The group is made as the weight plane makes its own (`process_groups.py`), over the given address.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from datetime import timedelta

import torch
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed import BroadcastOptions

from services.weight_sync.transports.process_groups import MAKE_PROCESS_GROUP
from services.weight_sync.transports.rendezvous import host_tcp_store
from trimaran.network import Host, split
from trimaran.types import TransferGroup

TIMEOUT = timedelta(seconds=30)
NUM_ROUNDS = 20
NUM_SENT = 8
SIZE = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--meet", default="")
    options = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    rank = 1 if options.meet else 0
    if options.meet:
        store: Store = TCPStore(*split(options.meet), 2, False, TIMEOUT, False)
    else:
        listener = Host(options.address).listen()
        print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
        store = host_tcp_store(listener, TIMEOUT.total_seconds())
    group = TransferGroup(group_id=1, nonce="", world_size=2, rendezvous="")
    gloo = MAKE_PROCESS_GROUP["gloo"](store, rank, group, options.address, TIMEOUT)
    seconds, each = _time(gloo, 1, 2 * NUM_ROUNDS), _time(gloo, SIZE, NUM_SENT)
    if rank == 1:
        print(json.dumps({"seconds": seconds * 2, "bytes_per_second": SIZE / each}), flush=True)
    store.set(f"done-{rank}", "")
    store.wait(["done-0", "done-1"], TIMEOUT)  # rank 0 holds the store


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _time(gloo: object, size: int, count: int) -> float:
    """Seconds of one broadcast, with the two ranks as senders in turn after a first round."""
    tensor = torch.zeros(size, dtype=torch.uint8)
    for sender in (0, 1):
        _broadcast(gloo, tensor, sender)
    start = time.monotonic()
    for turn in range(count):
        _broadcast(gloo, tensor, turn % 2)
    return (time.monotonic() - start) / count


def _broadcast(gloo: object, tensor: torch.Tensor, sender: int) -> None:
    options = BroadcastOptions()
    options.rootRank = sender
    options.rootTensor = 0
    gloo.broadcast([tensor], options).wait(TIMEOUT)  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    main()
