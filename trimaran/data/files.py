"""Files that the rows of a dataset name."""

from __future__ import annotations

import os
from pathlib import Path

from trimaran.errors import InputError
from trimaran.host.system_errors import refused

MAX_FILE_BYTES = 1 << 28
MAX_NAME_BYTES = 4096
"""Longer is no path on any host that we know: rather an image's bytes, as text."""
MAX_SHOWN = 200
"""Characters of a name in a message."""


def read_named(folder: Path, name: str) -> bytes:
    """The file `name` in `folder` or below it: a dataset shall not name any file of its reader's host.

    Raises InputError where it is elsewhere, missing, no regular file, unreadable or larger than
    MAX_FILE_BYTES. Its text is without the name, which the caller gives as `shown` has it.
    """
    check_name(name)
    folder = folder.resolve()
    try:
        path = Path(os.path.realpath(folder / name))  # follows a loop of links nowhere
        if not path.is_relative_to(folder):
            raise InputError(f"lies outside of the dataset's folder {folder}; bring it there")
        if not path.is_file():  # a pipe would hold its reader for ever
            raise InputError(f"there is no file of this name in the dataset's folder {folder}")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"the file has more than {MAX_FILE_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise refused("the file cannot be read", error) from None


def check_name(name: str) -> None:
    """By the name alone. Raises InputError for what no file can be called."""
    try:
        data = name.encode()
    except UnicodeEncodeError:
        raise InputError("its path holds half of a surrogate pair, which is no text") from None
    if len(data) > MAX_NAME_BYTES:
        raise InputError(
            f"its path has {len(data)} bytes, and at most {MAX_NAME_BYTES} are read; give an image as"
            " bytes or as the path of a file, not as text in base64"
        )
    if b"\0" in data:
        raise InputError("its path holds a null byte")


def shown(name: str) -> str:
    """For a message: what cannot be printed as its escape, and no more than MAX_SHOWN characters.

    Example: shown("a\\0.png") == r"a\\x00.png"
    """
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name[:MAX_SHOWN])
    return text + ("..." if len(name) > MAX_SHOWN else "")
