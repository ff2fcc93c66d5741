"""Ends what a killed launcher could not end: `guardian.py SECONDS`, a process of its own.

stdin holds a line "+<group>" for each process group that starts and "-<group>" for each that is
gone. Its end means that the launcher is gone: whatever is left of the groups after SECONDS is
killed. The services themselves get a SIGTERM from the kernel then, but one of them may be stuck,
or die before it has ended what it had started.
"""

import contextlib
import os
import signal
import sys
import time


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    deadline = time.monotonic() + float(sys.argv[1])
    while any(map(exists, groups)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main()
