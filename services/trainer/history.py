"""The versions that this run's trainers made: `versions.jsonl` in the run folder.

    {"lineage": 0, "step": 3, "root": "…"}

Append-only, on the disk before the version is answered. A replay that does not reach its recorded
weights gives one version a second root; both were made here, so both stand.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from trimaran.errors import InputError
from trimaran.types import PolicyVersion, VersionId

FILE = "versions.jsonl"


class VersionHistory:
    """Safe to call from several threads.

    Example: VersionHistory(run_folder).roots(VersionId(0, 3)) == {"5f1c…"}
    """

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / FILE
        self._lock = threading.Lock()
        self._roots = _read(self._path)

    def add(self, policy: PolicyVersion) -> None:
        """Idempotent. When it returns, the version is on the disk."""
        with self._lock:
            roots = self._roots.setdefault(policy.version, set())
            if policy.root in roots:
                return
            record = {
                "lineage": policy.version.lineage,
                "step": policy.version.step,
                "root": policy.root,
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
            roots.add(policy.root)

    def roots(self, version: VersionId) -> frozenset[str]:
        """Empty for a version that no trainer of this run made."""
        with self._lock:
            return frozenset(self._roots.get(version, ()))


def _read(path: Path) -> dict[VersionId, set[str]]:
    roots: dict[VersionId, set[str]] = {}
    if not path.exists():
        return roots
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:  # a crash in the middle of a line, whose version was never answered
        os.truncate(path, len(whole))
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            record = json.loads(line)
            version, root = VersionId(record["lineage"], record["step"]), record["root"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}:{number}: not a version's record ({error})") from None
        roots.setdefault(version, set()).add(root)
    return roots
