"""Input for a foreign program, and its output within bounds."""

from __future__ import annotations

import os
import selectors
import subprocess
import time

from trimaran.sandbox.job import KIB, MIB

MAX_OUTPUT_BYTES = 16 * MIB
MAX_ERROR_BYTES = 64 * KIB


def talk(process: subprocess.Popen[bytes], stdin: str, deadline: float) -> tuple[str, str, str]:
    """Output, errors, and the limit that it went over, if any; it may then still run. Where
    standard output goes elsewhere, errors are the output."""
    assert process.stderr
    rest = memoryview(stdin.encode("utf-8", "replace"))
    output, errors = bytearray(), bytearray()
    stopped = ""
    with selectors.DefaultSelector() as selector:
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        if process.stdout:
            selector.register(process.stdout, selectors.EVENT_READ, output)
        selector.register(
            process.stderr, selectors.EVENT_READ, errors if process.stdout else output
        )
        while selector.get_map() and not stopped:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if process.stdin and key.fileobj is process.stdin:
                    rest = _feed(key.fd, rest)
                    if not rest:
                        selector.unregister(key.fd)
                        process.stdin.close()
                elif piece := os.read(key.fd, 64 * KIB):
                    key.data.extend(piece)
                else:
                    selector.unregister(key.fd)
            del errors[MAX_ERROR_BYTES:]
            if len(output) > MAX_OUTPUT_BYTES:
                stopped = "output"
            elif time.monotonic() >= deadline:
                stopped = "time"
    if not stopped:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # it closed its output and goes on
            stopped = "time"
    return output.decode("utf-8", "replace"), errors.decode("utf-8", "replace"), stopped


def _feed(fd: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(fd, rest[: 64 * KIB]) :] if rest else rest
    except BrokenPipeError:  # it reads no more
        return rest[:0]
