"""What a process notes of itself in a file, so that `trimaran health` in its container can ask it.

An image names the file in TRIMARAN_HEALTH_FILE. Only the process that an engine of containers has
started notes anything: it takes the variable out of its environment, so that nothing which it starts
itself writes over the note.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trimaran.trust.access import TlsFiles

VARIABLE = "TRIMARAN_HEALTH_FILE"


@dataclass(frozen=True, slots=True)
class HealthNote:
    """Example: HealthNote("rollout-0", address="10.0.0.3:20001")"""

    name: str
    """A process's, such as rollout-0 or manager."""
    address: str = ""
    """Whose health is asked: host:port of gRPC, or a URL. Empty: it does not listen yet."""
    tls: dict[str, Any] | None = None
    """As `TlsFiles.to_tree` makes it."""
    waits: str = ""
    """What it does before it listens."""
    until: float = 0.0
    """Seconds since 1970: if it does not listen by then, something is wrong."""


class Notes:
    """The notes of one process; without a file nothing is noted.

    Example:
        notes = Notes.claim("reward", os.environ)
        notes.wait("starts", seconds=300)
        notes.serve("127.0.0.1:7001")
    """

    def __init__(self, name: str = "", path: Path | None = None) -> None:
        self._name, self._path = name, path

    @classmethod
    def claim(cls, name: str, environment: MutableMapping[str, str]) -> Notes:
        """Takes the variable out of `environment`, and is `own` from now on."""
        global own
        path = environment.pop(VARIABLE, None)
        own = cls(name, Path(path) if path else None)
        return own

    def wait(self, what: str, seconds: float) -> None:
        self._write(HealthNote(self._name, waits=what, until=time.time() + seconds))

    def serve(self, address: str, tls: TlsFiles | None = None) -> None:
        self._write(HealthNote(self._name, address, tls.to_tree() if tls else None))

    def _write(self, note: HealthNote) -> None:
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


def noted_file() -> Path | None:
    """Where the image says that the note is."""
    path = os.environ.get(VARIABLE)
    return Path(path) if path else None
