"""Runs a command in a process group of its own, with a deadline, and leaves nothing of it behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run_in_group(
    command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str], seconds: float
) -> tuple[int, str] | None:
    """Exit code and output, both streams together; None when it takes longer.

    Example: run_in_group([sys.executable, "-m", "pytest"], ROOT, os.environ, 60.0)
    """
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=cwd,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # whatever it has started, too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return process.returncode, output
