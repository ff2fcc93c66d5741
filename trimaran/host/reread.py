"""Files that may change while we run, and are read again then."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from trimaran.errors import InputError, UnavailableError

logger = logging.getLogger(__name__)
Value = TypeVar("Value")
_Sign = tuple[tuple[int, int, int] | None, ...]


class Reread(Generic[Value]):
    """Read at the start, and again when a file has changed. What cannot be read leaves the old.

    Example:
        clients = Reread([path], lambda: read_clients(path))
        clients.current()
    """

    def __init__(self, paths: Sequence[Path], read: Callable[[], Value]) -> None:
        """Raises what `read` raises."""
        self._paths, self._read = paths, read
        self._seen = self._look()
        self._value = read()

    def current(self) -> Value:
        """Looks at the files' times each time, which takes microseconds."""
        seen = self._look()
        if seen != self._seen:
            names = ", ".join(map(str, self._paths))
            try:
                self._value = self._read()
            except UnavailableError as error:
                logger.warning("%s: changed and is to be read again: %s", names, error)
                return self._value
            except InputError as error:
                logger.warning(
                    "%s changed and cannot be used, so the old one counts: %s", names, error
                )
            else:
                logger.info("%s changed and was read again", names)
            self._seen = seen
        return self._value

    def _look(self) -> _Sign:
        return tuple(map(_sign, self._paths))


def _sign(path: Path) -> tuple[int, int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
