"""Where the members of a transfer group find each other: a key-value store in the sender."""

from __future__ import annotations

import socket
from datetime import timedelta

from torch._C._distributed_c10d import Store, TCPStore


def host_store(listener: socket.socket, timeout: float) -> Store:
    """The sender's, on a socket that listens already."""
    host, port = listener.getsockname()
    return TCPStore(
        host,
        port,
        is_master=True,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # the store closes it
    )


def connect_store(address: str, timeout: timedelta) -> Store:
    """A member's. Raises OSError at once when nobody listens there.

    torch asks the name server about the address; without one that answers, each
    connection waits for the resolver's own timeout.
    """
    host, _, port = address.rpartition(":")
    # TCPStore would try a closed port again and again; closed, it means that the group is gone.
    socket.create_connection((host, int(port)), timeout.total_seconds()).close()
    return TCPStore(host, int(port), is_master=False, timeout=timeout, wait_for_workers=False)
