"""Runs a command that ends with the process that started it, and takes along what it started itself.

    python -S owned.py PARENT COMMAND …

It leads the process group that it is started in. The group ends with the command, with the parent, and at
SIGTERM.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_group(*_: object) -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)


def die_with(parent: int, number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew of our wish
        os._exit(1)


def main(parent: int, command: list[str]) -> None:
    signal.signal(signal.SIGTERM, end_group)
    die_with(parent, signal.SIGTERM)
    leader = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        die_with(leader, signal.SIGKILL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
            os._exit(127)
    os.close(0)  # the command's alone, so that each end is seen
    os.close(1)
    os.waitpid(child, 0)
    end_group()


main(int(sys.argv[1]), sys.argv[2:])
