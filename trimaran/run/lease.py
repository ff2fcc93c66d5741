"""The lease of a run's launcher: at most one, and the manager sees whether it lives."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from trimaran.errors import InputError, UnavailableError
from trimaran.store import ConflictError, Lease, Store

logger = logging.getLogger(__name__)

LEASE_SECONDS = 10.0
RENEW_SECONDS = 2.0
RETRY_SECONDS = 0.5


def holder_name(pid: int) -> str:
    """Place, process id and when the process started: names one process for all time.

    Example: holder_name(os.getpid()) == "gpu-7/4f1c22d8/4026531836 4711 18234567"
    """
    return f"{place()} {pid} {_start_time(pid)}"


def place() -> str:
    """Host, boot and space of process ids: within it an id means one process. Containers may share
    their host's name, and each has process ids of its own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    space = os.stat("/proc/self/ns/pid").st_ino
    return f"{socket.gethostname()}/{boot}/{space}"


def is_elsewhere(holder: str) -> bool:
    """A process of another place: it cannot be seen from here whether it lives."""
    return holder.partition(" ")[0] != place()


def is_gone(holder: str) -> bool:
    """Whether the holder is known to have ended: only of a process of this place can that be."""
    pid, _, started = holder.partition(" ")[2].partition(" ")
    return not is_elsewhere(holder) and pid.isdecimal() and _start_time(int(pid)) != started


@asynccontextmanager
async def held_lease(store: Store, name: str) -> AsyncGenerator[Lease]:
    """Inside, this process has the lease, and renews it.

    Raises InputError while another process keeps it, and ConflictError inside once another has
    taken it over. A store that is away is waited for: no other can take the lease there.
    """
    lease = await _acquire(store, name)
    try:
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(_renew(store, lease))
            try:
                yield lease
            finally:
                renewing.cancel()
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        with suppress(UnavailableError):  # then it ends by itself
            await store.release(lease)


async def _acquire(store: Store, name: str) -> Lease:
    mine, deadline = holder_name(os.getpid()), time.monotonic() + LEASE_SECONDS + RENEW_SECONDS
    while (lease := await store.acquire(name, mine, LEASE_SECONDS)) is None:
        other = await store.holder(name)
        if other is not None and is_gone(other.holder):
            # In its name, which is not used any more: what it had is not worth waiting for.
            if (former := await store.acquire(name, other.holder, LEASE_SECONDS)) is not None:
                await store.release(former)
            continue
        if other is not None and time.monotonic() > deadline:
            raise InputError(
                f"{name}: this run is still going on ({other.holder}: place, process id, start);"
                " end it first"
            )
        await asyncio.sleep(RETRY_SECONDS)
    return lease


async def _renew(store: Store, lease: Lease) -> None:
    while True:
        await asyncio.sleep(RENEW_SECONDS)
        try:
            await store.renew(lease, LEASE_SECONDS)
        except UnavailableError as error:
            logger.warning("%s cannot be renewed: %s", lease.name, error)
        except ConflictError:
            raise ConflictError(
                f"{lease.name}: another launcher has taken the run over; this one ends"
            ) from None


def _start_time(pid: int) -> str:
    """In clock ticks since the machine started; empty when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
