"""What a process notes of itself in a file: for `trimaran health` in its container, and for the run's controller.

An image names the file in TRIMARAN_HEALTH_FILE. The process that an engine of containers has started takes
the variable out of its environment, so that nothing which it starts itself writes over the note. A service
without that variable has its note beside its log.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from trimaran.trust.access import TlsFiles

VARIABLE = "TRIMARAN_HEALTH_FILE"
SUFFIX = ".health"
SAY_SECONDS = 1.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HealthNote:
    """Example: HealthNote("rollout-0", address="10.0.0.3:20001")"""

    name: str
    """A process's, such as rollout-0 or manager."""
    address: str = ""
    """Whose health is asked: host:port of gRPC, or a URL. Empty: it does not listen yet."""
    tls: dict[str, Any] | None = None
    """As `TlsFiles.to_tree` makes it."""
    doing: str = ""
    """What it does before it listens, or that takes long."""
    until: float = 0.0
    """Seconds since 1970: if it does not listen by then, something is wrong."""


class Notes:
    """The notes of one process; without a file nothing is written.

    Example:
        notes = Notes.claim("trainer-0", os.environ, run.folder)
        notes.wait("starts", seconds=300)
        for name, tensor in notes.counted("loads", tensors, len(tensors), "tensors of the model"):
            ...
        notes.serve("127.0.0.1:7001")
    """

    def __init__(self, name: str = "", path: Path | None = None) -> None:
        self._note, self._path = HealthNote(name), path

    @classmethod
    def claim(
        cls, name: str, environment: MutableMapping[str, str], run_folder: Path | None = None
    ) -> Notes:
        """Takes the variable out of `environment`, and is `own` from now on."""
        global own
        given = environment.pop(VARIABLE, None)
        path = Path(given) if given else None
        if path is None and run_folder is not None:
            path = run_folder / "logs" / f"{name}{SUFFIX}"
            path.parent.mkdir(exist_ok=True)
        own = cls(name, path)
        return own

    @property
    def doing(self) -> str:
        return self._note.doing

    def wait(self, what: str, seconds: float) -> None:
        self._write(replace(self._note, doing=what, until=time.time() + seconds))

    def serve(self, address: str, tls: TlsFiles | None = None) -> None:
        self._write(HealthNote(self._note.name, address, tls.to_tree() if tls else None))

    def say(self, what: str) -> None:
        """What takes long from now on; empty once it is done. Where the disk has no room the note stays as it is."""
        with suppress(OSError):
            self._write(replace(self._note, doing=what))

    def counted(self, verb: str, items: Iterable[T], total: int, what: str) -> Iterator[T]:
        """The items, while it is said how many have been used, at most once a second."""
        said_at = -math.inf
        try:
            for number, item in enumerate(items):
                if (now := time.monotonic()) - said_at >= SAY_SECONDS:
                    self.say(f"{verb} {number} of {total} {what}")
                    said_at = now
                yield item
        finally:
            self.say("")

    def _write(self, note: HealthNote) -> None:
        self._note = note
        if self._path is None:
            return
        partial = self._path.with_name(f"{self._path.name}.partial")
        partial.write_text(json.dumps(asdict(note)), encoding="utf-8")
        partial.replace(self._path)


own = Notes()
"""The notes of this process."""


def read_note(path: Path) -> HealthNote | None:
    """None where nothing is noted."""
    try:
        return HealthNote(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def read_notes(run_folder: Path) -> Iterator[HealthNote]:
    """Those of the run's processes on this host."""
    for path in sorted((run_folder / "logs").glob(f"*{SUFFIX}")):
        if note := read_note(path):
            yield note


def noted_file() -> Path | None:
    """Where the image says that the note is."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None
