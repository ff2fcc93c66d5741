"""Peak memory of a process and all that it started, each shared page counted once (PSS)."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

SECONDS_BETWEEN_SAMPLES = 1.0


class PeakMemory:
    """Context manager; `peak_bytes` afterwards is the largest sum that was seen."""

    def __init__(self, process_id: int) -> None:
        self._process_id = process_id
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=30)

    def _watch(self) -> None:
        while not self._stop.wait(SECONDS_BETWEEN_SAMPLES):
            self.peak_bytes = max(self.peak_bytes, _tree_bytes(self._process_id))


def _tree_bytes(process_id: int) -> int:
    try:
        root = psutil.Process(process_id)
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    return sum(_proportional_bytes(process) for process in processes)


def _proportional_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0  # it ended while we looked
