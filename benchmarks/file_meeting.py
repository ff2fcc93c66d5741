"""Where trainer ranks without a run's store find rank 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class FileMeeting:
    """As services.trainer.meeting.Meeting, in a file, for ranks of which none is ever replaced."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def announce(self, place: dict[str, Any]) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(place), encoding="utf-8")
        partial.replace(self._file)

    def find(self) -> dict[str, Any] | None:
        return json.loads(self._file.read_text()) if self._file.exists() else None

    def meets(self, place: dict[str, Any]) -> None: ...
