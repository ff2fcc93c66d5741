"""A JSON file that is one array, item by item: such a file may be larger than memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from trimaran.errors import InputError

CHUNK = 1 << 20
"""Characters that are read at a time."""
MOST_CHARACTERS = 1 << 28
"""Of one item. Of a broken file no more is read than this."""
SPACE = re.compile(r"[ \t\r\n]*")


def read_array(path: Path) -> Iterator[tuple[int, Any]]:
    """(number, item), from 1 on. Raises InputError that names the item that is broken.

    Example: list(read_array(path)) == [(1, {"a": 1}), (2, {"a": 2})]  # of [{"a": 1}, {"a": 2}]
    """
    with path.open(encoding="utf-8-sig") as file:
        text = _Text(path, file)
        text.take("[")
        if text.next == "]":
            text.take("]")
        else:
            yield 1, text.item()
            while text.take(",]") == ",":
                text.number += 1
                yield text.number, text.item()
        if text.next:
            raise text.broken(f"{text.next!r} stands behind the array")


class _Text:
    """What was read of a file and not taken yet."""

    def __init__(self, path: Path, file: TextIO) -> None:
        self._path, self._file = path, file
        self._held, self._at = "", 0
        self._decode = json.JSONDecoder().raw_decode
        self.number = 1
        """Of the item that is read."""

    @property
    def next(self) -> str:
        """The next character that is no space; "" at the end."""
        while True:
            match = SPACE.match(self._held, self._at)
            assert match
            self._at = match.end()
            if self._at < len(self._held):
                return self._held[self._at]
            if not self._more():
                return ""

    def take(self, characters: str) -> str:
        """The next one, which must be one of these."""
        found = self.next
        if not found or found not in characters:
            wanted = " or ".join(map(repr, characters))
            raise self.broken(f"{wanted} is missing, found {found or 'the end of the file'!r}")
        self._at += 1
        return found

    def item(self) -> Any:
        """Read again from its start where its end was not held: each time twice as much is."""
        reason = "an item is missing"
        while self.next:
            try:
                found, end = self._decode(self._held, self._at)
            except RecursionError as error:
                raise self.broken(str(error)) from None
            except ValueError as error:
                reason = str(getattr(error, "msg", error))
            else:
                if end < len(self._held):
                    self._at = end
                    return found
                reason = "the file ends in the array"  # or a number goes on
            if not self._more():
                break
        raise self.broken(reason)

    def broken(self, reason: str) -> InputError:
        return InputError(f"{self._path}:{self.number}: not JSON ({reason})")

    def _more(self) -> bool:
        """False at the end of the file."""
        left = self._held[self._at :]
        if len(left) > MOST_CHARACTERS:
            raise self.broken(f"no item ends within {MOST_CHARACTERS} characters")
        try:
            read = self._file.read(max(CHUNK, len(left)))
        except UnicodeDecodeError as error:
            raise self.broken(str(error)) from None
        self._held, self._at = left + read, 0
        return bool(read)
