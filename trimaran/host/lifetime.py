"""A process dies with the one that started it, however that one dies (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1
PARENT_VARIABLE = "TRIMARAN_PARENT"
"""Set by the launcher to its own process id: "end when I end"."""


def die_with_parent(parent: int, with_signal: signal.Signals) -> None:
    """The kernel sends us `with_signal` when the thread that started us ends.

    Raises ProcessLookupError when the parent is already gone.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(with_signal), 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl: {os.strerror(code)}")
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        raise ProcessLookupError(f"process {parent}, which started this one, is gone")


def outlive_parent() -> None:
    """Takes `die_with_parent` back."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)


def kill_group(group: int) -> None:
    """SIGKILL to every process that is left in the group; nothing when none is."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return
