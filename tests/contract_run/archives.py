"""Stands for tests/contract/archives.py until that is merged: the same two functions."""

from __future__ import annotations

import os
from pathlib import Path


class OfflineError(Exception):
    """No index gave the file."""


def verified(file: str) -> Path | None:
    path = Path(os.environ.get("CONTRACT_ARCHIVES", "."), file)
    return path if path.is_file() else None
