"""Paths that a specification names, below the roots that the operator allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trimaran.errors import ForbiddenError, InputError
from trimaran.host.system_errors import refused

MAX_SHOWN = 300
"""Characters of a path in a message."""


class InRoots:
    """Finds what lies below one of the roots, without a link on the way.

    Example: InRoots("data", [Path("/data")]).file(Path("gsm8k/train.jsonl"), "data.train")
    """

    def __init__(self, kind: str, roots: Sequence[Path] | None) -> None:
        """`kind` names the roots in errors. None: any absolute path."""
        self._kind = kind
        self._named = tuple(map(Path, roots)) if roots is not None else (Path("/"),)
        self._is_open = roots is None

    def file(self, path: Path, key: str) -> Path:
        """Resolved. Raises InputError where there is no such file, ForbiddenError."""
        with naming(key, path):
            found = self._find(path, key)
            # A pipe would hold its reader for ever.
            if not stat.S_ISREG(found.stat().st_mode):
                raise InputError(f"{key}: {path}: is not a file")
            return found

    def folder(self, path: Path, key: str) -> Path:
        """The same, with all that lies in it."""
        with naming(key, path):
            found = self._find(path, key)
            if not found.is_dir():
                raise InputError(f"{key}: {path}: is not a folder")
            if not self._is_open:
                for inner in found.rglob("*"):
                    self._check_inner(inner, key)
            return found

    def elsewhere(self, path: Path, key: str) -> Path:
        """A path on another host: only where it would lie is checked. Raises ForbiddenError."""
        if ".." in path.parts or "\0" in str(path):
            raise ForbiddenError(f"{key}: {path}: .. leads elsewhere; name the place itself")
        if not path.is_absolute():
            raise InputError(
                f"{key}: {path}: give an absolute path, as the hosts of the run have it"
            )
        if not any(path.is_relative_to(root) for root in self._named):
            raise ForbiddenError(
                f"{key}: {path}: is not below a root that the operator allows for {self._kind}"
            )
        return path

    def _find(self, path: Path, key: str) -> Path:
        if ".." in path.parts or "\0" in str(path):
            raise ForbiddenError(f"{key}: {path}: .. leads elsewhere; name the place itself")
        if self._is_open:
            if not path.is_absolute():
                raise InputError(f"{key}: {path}: give an absolute path, on the manager's machine")
            return _existing(path.resolve(), path, key)
        for start, root in self._starts(path):
            relative = path.relative_to(start) if path.is_absolute() else path
            if path.is_absolute() or os.path.lexists(root / relative):
                self._check_way(root, relative, path, key)
                return _existing(root / relative, path, key)
        if path.is_absolute():
            raise ForbiddenError(
                f"{key}: {path}: is not below a root that the operator allows for {self._kind}"
            )
        raise InputError(
            f"{key}: {path}: is below no root that the operator allows for {self._kind}"
        )

    def _starts(self, path: Path) -> Iterator[tuple[Path, Path]]:
        """What `path` begins with, and the root that is meant."""
        for named in self._named:
            root = named.resolve()
            for start in (named, root):
                if not path.is_absolute() or path.is_relative_to(start):
                    yield start, root
                    break

    def _check_way(self, root: Path, relative: Path, path: Path, key: str) -> None:
        place = root
        for part in ("", *relative.parts):
            place = place / part
            try:
                mode = place.lstat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                raise InputError(f"{key}: {path}: no such file or folder") from None
            if stat.S_ISLNK(mode):
                raise ForbiddenError(
                    f"{key}: {path}: {part} is a symbolic link; name what it leads to"
                )
            if mode & stat.S_IWOTH:
                raise ForbiddenError(
                    f"{key}: {path}: anybody may exchange what lies there; chmod o-w {place}"
                )

    def _check_inner(self, inner: Path, key: str) -> None:
        """A link of a Hugging Face cache leads to its blobs, below the same root."""
        real = inner.resolve()
        if inner.is_symlink() and not any(real.is_relative_to(r.resolve()) for r in self._named):
            raise ForbiddenError(f"{key}: {inner}: leads out of the roots for {self._kind}")
        if not (real.is_file() or real.is_dir()):
            raise InputError(f"{key}: {inner}: is neither a file nor a folder")


@contextmanager
def naming(key: str, path: Path) -> Generator[None]:
    """What the system says of `path` is an error of `key`: a name that is too long, a folder
    that the manager may not enter."""
    try:
        yield
    except OSError as error:
        raise refused(f"{key}: {str(path)[:MAX_SHOWN]}: cannot be read", error) from None


def _existing(found: Path, path: Path, key: str) -> Path:
    if not found.exists():
        raise InputError(f"{key}: {path}: no such file or folder")
    return found
