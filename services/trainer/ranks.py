"""How the trainer's ranks find each other: torch's default process group.

Rank 0 hosts torch's store on its host's address and announces it with a nonce, so that what earlier
ranks of the run announced misleads no rank. Each other rank takes its seat there, a key with a word of
its own life. A seat has one holder: a rank that finds it taken comes after one that has died, so this
rank 0 has to start again (`Meeting.ask_again`), and the rank waits for its next announcement.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store, TCPStore

from services.trainer.meeting import Meeting
from trimaran.errors import DeadlineError, UnavailableError
from trimaran.host.gloo import share_device
from trimaran.run.network import LOOPBACK, Host

NONCE_KEY = "trimaran/nonce"
POLL_SECONDS = 0.1
CONNECT_SECONDS = 5.0


def join_ranks(
    backend: str,
    rank: int,
    size: int,
    meeting: Meeting | None,
    join_timeout: float,
    collective_timeout: float,
    host: Host = LOOPBACK,
) -> None:
    """Make the default process group; returns when all ranks are in it. Seconds.

    A single rank needs no `meeting`. Raises DeadlineError when a rank does not come within `join_timeout`.
    """
    # gloo would otherwise listen on whatever address the host's name has.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", host.interface)
    share_device()
    deadline = time.monotonic() + join_timeout
    if meeting is None or size == 1:
        store: Store = HashStore()
    elif rank == 0:
        store = _host(meeting, host, join_timeout)
    else:
        store = _find(meeting, rank, deadline)
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
    if rank == 0:
        store.set(_seat(0), "")
    store.wait([_seat(other) for other in range(size)], timeout)


def _seat(rank: int) -> str:
    return f"trimaran/here/{rank}"


def _host(meeting: Meeting, host: Host, timeout: float) -> TCPStore:
    listener = host.listen()
    port = listener.getsockname()[1]
    store = TCPStore(
        host.address,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )
    nonce = secrets.token_hex(16)
    store.set(NONCE_KEY, nonce)
    place = {"host": host.address, "port": port, "nonce": nonce}
    meeting.meets(place)
    meeting.announce(place)
    return store


def _find(meeting: Meeting, rank: int, deadline: float) -> TCPStore:
    life = secrets.token_hex(16)
    while time.monotonic() < deadline:
        store = _try(meeting, rank, life)
        if store is not None:
            return store
        time.sleep(POLL_SECONDS)
    raise DeadlineError(
        f"trainer rank {rank}: rank 0 did not announce itself in the run's store in time;"
        " see the log of trainer-0"
    )


def _try(meeting: Meeting, rank: int, life: str) -> TCPStore | None:
    """The store that was announced, if it is there, has the nonce that was announced with it, and a
    free seat."""
    try:
        published = meeting.find()
        if published is None:
            return None
        # TCPStore waits long for a closed port; a plain connection knows at once.
        place = published["host"], published["port"]
        socket.create_connection(place, CONNECT_SECONDS).close()
        store = TCPStore(
            *place,
            is_master=False,
            timeout=timedelta(seconds=CONNECT_SECONDS),
            wait_for_workers=False,
        )
        if store.get(NONCE_KEY).decode() != published["nonce"]:
            return None
        if store.compare_set(_seat(rank), "", life).decode() != life:
            meeting.ask_again(published)
            return None
        meeting.meets(published)
        return store
    except (OSError, KeyError, RuntimeError, UnavailableError):
        return None  # not yet, or of earlier ranks: look again
