"""Who uses memory that several processes have open, as the kernel's file locks say.

    claimed   by one process, which may write to it
    leased    by any number of others, which read it and may rely on what they have found there

A lock belongs to an open file: it ends with the process that has it, whatever the end of that process
was.
"""

from __future__ import annotations

import fcntl


def claim(descriptor: int) -> bool:
    """For writing. False while anybody else has a lease or a claim."""
    return _lock(descriptor, fcntl.LOCK_EX)


def lease(descriptor: int) -> bool:
    """For reading. False while anybody else has a claim."""
    return _lock(descriptor, fcntl.LOCK_SH)


def release(descriptor: int) -> None:
    """Ends the lease or the claim of this open file, if it has one."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
