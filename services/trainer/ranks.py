"""How the trainer's ranks find each other: torch's default process group, on loopback.

Rank 0 hosts the store on a port that the system chooses and publishes it in the
run folder with a nonce, so that a file left by an earlier run misleads nobody.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from trimaran.errors import DeadlineError

LOOPBACK = "127.0.0.1"
RENDEZVOUS = "trainer-rendezvous.json"
NONCE_KEY = "trimaran/nonce"
POLL_SECONDS = 0.1
CONNECT_SECONDS = 5.0


def join_ranks(
    backend: str,
    rank: int,
    size: int,
    run_folder: Path,
    join_timeout: float,
    collective_timeout: float,
) -> None:
    """Make the default process group; returns when all ranks are in it. Seconds.

    Raises DeadlineError when a rank does not come within `join_timeout`.
    """
    # gloo would otherwise listen on whatever address the host's name has.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    deadline = time.monotonic() + join_timeout
    if size == 1:
        store: Store = HashStore()
    elif rank == 0:
        store = _host(run_folder, join_timeout)
    else:
        store = _find(run_folder, rank, deadline)
    timeout = timedelta(seconds=collective_timeout)
    try:
        if size > 1:
            _meet(store, rank, size, timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    except (dist.DistError, RuntimeError) as error:
        raise DeadlineError(
            f"trainer rank {rank}: the {size} ranks did not meet within {join_timeout:g} s"
            f" ({str(error).splitlines()[0]}); see the logs of the other ranks"
        ) from error


def _meet(store: Store, rank: int, size: int, timeout: timedelta) -> None:
    store.set(f"trimaran/here/{rank}", "")
    store.wait([f"trimaran/here/{other}" for other in range(size)], timeout)


def _host(run_folder: Path, timeout: float) -> TCPStore:
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    store = TCPStore(
        LOOPBACK,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )
    nonce = secrets.token_hex(16)
    store.set(NONCE_KEY, nonce)
    temporary = run_folder / f"{RENDEZVOUS}.tmp"
    temporary.write_text(json.dumps({"port": port, "nonce": nonce}), encoding="utf-8")
    temporary.rename(run_folder / RENDEZVOUS)
    return store


def _find(run_folder: Path, rank: int, deadline: float) -> TCPStore:
    while time.monotonic() < deadline:
        store = _try(run_folder / RENDEZVOUS)
        if store is not None:
            return store
        time.sleep(POLL_SECONDS)
    raise DeadlineError(
        f"trainer rank {rank}: rank 0 did not open {RENDEZVOUS} in time; see the log of trainer-0"
    )


def _try(path: Path) -> TCPStore | None:
    """The store that the file names, if it is there and has the file's nonce."""
    try:
        published = json.loads(path.read_text(encoding="utf-8"))
        # TCPStore waits long for a closed port; a plain connection knows at once.
        socket.create_connection((LOOPBACK, published["port"]), CONNECT_SECONDS).close()
        store = TCPStore(
            LOOPBACK,
            published["port"],
            is_master=False,
            timeout=timedelta(seconds=CONNECT_SECONDS),
            wait_for_workers=False,
        )
        return store if store.get(NONCE_KEY).decode() == published["nonce"] else None
    except (OSError, ValueError, KeyError, RuntimeError):
        return None  # not yet, or of an earlier run: look again
