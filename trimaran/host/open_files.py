"""How many files and sockets this process may have open, and how many of them strangers may take."""

from __future__ import annotations

import resource

PART = 4
"""Connections of one server take at most this part of what may be open. A process has two servers at
most, gRPC and HTTP, so half is left for stores, children, logs and /proc."""
MOST_CONNECTIONS = 4096
"""Each takes memory as well."""


def raise_limit() -> None:
    """The soft limit becomes the hard one, also for what this process starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """The bound of one server."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(soft // PART, MOST_CONNECTIONS)
