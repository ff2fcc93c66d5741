"""The places that a run writes to: room, speed of fsync, and what kind of file system it is."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commands.doctor.checks.limits import describe_bytes
from commands.doctor.finding import Finding, KnownFault, Severity
from commands.doctor.system import System
from services.manager.admission.costs import GIB, costs_of
from trimaran.config import RunConfig
from trimaran.host.places import is_bucket

NUM_WRITES = 9
WRITE = bytes(4096)
SLOW_SECONDS = 0.05
"""A record of the ledger, and of the store, waits for one fsync each."""
VOLATILE = ("tmpfs", "ramfs")
OVER_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs")

UNWRITABLE = KnownFault(
    "disks/unwritable",
    Severity.ERROR,
    "{folder} cannot be written ({said})",
    "the run writes {what} there",
    "chown -R $USER {folder}   # or name another folder",
)
ROOM = KnownFault(
    "disks/room",
    Severity.ERROR,
    "{folder} has {has} free, and this run may take {wants} ({what})",
    "a run that cannot write is held, and fails after run.hold_timeout",
    "df -h {folder}   # then run.keep_checkpoints, run.payload_quota_gib, or another folder",
)
SLOW = KnownFault(
    "disks/slow-fsync",
    Severity.WARNING,
    "a write to {folder} takes {milliseconds:.0f} ms until it is safe",
    "each record of the run waits for it: steps become longer, and leases run out on a disk that"
    " stalls",
    "run.folder=...   # on a local disk, or the store on a Redis server: trimaran up --store redis://...",
)
TMPFS = KnownFault(
    "disks/volatile",
    Severity.WARNING,
    "{folder} lies in memory ({kind})",
    "checkpoints there take the run's memory, and are gone after a restart of the host",
    "run.folder=...   # on a disk",
)
REMOTE = KnownFault(
    "disks/store-over-network",
    Severity.WARNING,
    "{folder} is a network file system ({kind}), and the run's store would be a file there",
    "SQLite's locks do not hold over every network file system: two hosts may both believe that they"
    " have the run",
    "trimaran up --store redis://...   # or run.folder on a local disk",
)


@dataclass(frozen=True, slots=True)
class WrittenFolder:
    """One folder. Example: WrittenFolder("runs", "checkpoints", wants=1 << 30, has=1 << 33, ...)"""

    folder: str
    what: str
    """That the run writes there."""
    wants: float
    """Bytes."""
    has: float
    said: str
    """Why nothing can be written; empty where it can."""
    seconds: float
    """The time of a write until it is safe; median of a few."""
    kind: str
    """The kind of file system."""
    has_store: bool = False


def read_places(system: System, config: RunConfig) -> list[WrittenFolder]:
    """Writes a small file to each, and removes it."""
    run, quota = config.run, (config.run.payload_quota_gib or 0) * GIB
    saved = costs_of(config).disk_gib * GIB - quota
    parts = (("checkpoints", run.checkpoints, saved), ("payloads", run.payloads, quota))
    inside = [(what, wants) for what, url, wants in parts if url is None]
    what = ", ".join([*(name for name, _ in inside), "records and logs"])
    wants = sum(each for _, each in inside)
    places = [read_place(system, Path(run.folder), what, wants, has_store=True)]
    for name, url, each in parts:
        if url is not None and not is_bucket(url):
            places.append(read_place(system, Path(url.removeprefix("file://")), name, each))
    return places


def read_place(
    system: System, folder: Path, what: str, wants: float, has_store: bool = False
) -> WrittenFolder:
    """The nearest parent counts where the folder is not there yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    sizes, said, seconds = os.statvfs(there), "", 0.0
    probe = there / f".trimaran-doctor-{os.getpid()}"
    try:
        seconds = _time_writes(probe)
    except OSError as error:
        said = error.strerror or str(error)
    finally:
        probe.unlink(missing_ok=True)
    has, kind = sizes.f_bavail * sizes.f_frsize, _kind_of(system, there)
    return WrittenFolder(str(folder), what, wants, has, said, seconds, kind, has_store)


def check_places(places: list[WrittenFolder], has_redis: bool) -> Iterator[Finding]:
    for place in places:
        words = {"folder": place.folder, "what": place.what, "kind": place.kind}
        if place.said:
            yield UNWRITABLE.found(said=place.said, **words)
            continue
        if place.has < place.wants:
            has, wants = describe_bytes(place.has), describe_bytes(place.wants)
            yield ROOM.found(has=has, wants=wants, **words)
        if place.seconds > SLOW_SECONDS:
            yield SLOW.found(milliseconds=place.seconds * 1000, **words)
        if place.kind in VOLATILE:
            yield TMPFS.found(**words)
        if place.kind in OVER_NETWORK and place.has_store and not has_redis:
            yield REMOTE.found(**words)


def _time_writes(probe: Path) -> float:
    taken: list[float] = []
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(os.open(probe, flags, 0o600), "wb", buffering=0) as file:
        for _ in range(NUM_WRITES):
            start = time.monotonic()
            file.write(WRITE)
            os.fsync(file.fileno())
            taken.append(time.monotonic() - start)
    return statistics.median(taken)


def _kind_of(system: System, path: Path) -> str:
    """The kind of the last mount whose folder holds the path."""
    mounts = re.findall(r"(?m)^\S+ (\S+) (\S+)", system.read("proc/self/mounts"))
    names = {name.replace("\\040", " "): kind for name, kind in mounts}
    holding = [parent for parent in (path, *path.parents) if str(parent) in names]
    return names[str(holding[0])] if holding else ""
