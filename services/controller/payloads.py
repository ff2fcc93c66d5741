"""Files that hold scored groups (tokens, log-probabilities, rewards), named by their sha256."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Set
from pathlib import Path

from trimaran.errors import InputError


def payload_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class PayloadStore:
    """One file a payload.

    Example:
        payloads = PayloadStore(run_folder / "payloads")
        digest = payload_digest(b"tokens")
        payloads.write({digest: b"tokens"})
        payloads.read(digest) == b"tokens"
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def write(self, payloads: Mapping[str, bytes]) -> None:
        """digest -> data. When it returns, all of them are on the disk, whole."""
        if not payloads:
            return
        for digest, data in payloads.items():
            partial = self._folder / f"{digest}.partial"
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(self._folder / digest)
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, digest: str) -> bytes:
        """Raises InputError when the payload is gone or altered."""
        path = self._folder / digest
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise InputError(
                f"{path}: payload is missing; the run cannot be resumed from this checkpoint"
            ) from None
        if payload_digest(data) != digest:
            raise InputError(f"{path}: payload does not match its digest; the file was altered")
        return data

    def prune(self, keep: Set[str]) -> None:
        """Remove all but the named payloads, and what a crash left half-written."""
        for path in self._folder.iterdir():
            if path.name not in keep:
                path.unlink()
