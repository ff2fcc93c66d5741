"""How much memory this process may still take before the kernel's OOM killer ends a process.

From the kernel's files: /proc/meminfo for the machine, and the cgroup (version 2) of this process
with all those above it. Memory files (memfd) are limited by nothing else: not by the size of /dev/shm, and under strict
overcommit the kernel refuses their pages with an error of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimaran.errors import TransferError

MARGIN_BYTES = 64 * 2**20
"""Left for what this process and others allocate meanwhile."""
UNLIMITED = 1 << 62


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Example: find_free_memory() is FreeMemory(21_833_461_760, "this machine")"""

    num_bytes: int
    where: str
    """What bounds it, in words."""


def require_free_memory(num_bytes: int, what: str) -> None:
    """Raises TransferError, which names `what`, unless so much can be taken now."""
    room = find_free_memory()
    if num_bytes + MARGIN_BYTES > room.num_bytes:
        raise TransferError(
            f"no room for {num_bytes / 2**20:.0f} MiB of {what} on the host:"
            f" {max(room.num_bytes, 0) / 2**20:.0f} MiB are left in {room.where}"
        )


def find_free_memory(proc: Path = Path("/proc")) -> FreeMemory:
    """The narrowest of all limits; what the kernel can take back from its page cache is room."""
    return min(_rooms(proc), key=lambda room: room.num_bytes)


def _rooms(proc: Path) -> Iterator[FreeMemory]:
    machine = _numbers(proc / "meminfo")
    available = machine.get("MemAvailable:", UNLIMITED >> 10) + machine.get("SwapFree:", 0)
    yield FreeMemory(available << 10, "this machine")
    for folder in _cgroups(proc):
        limit, used = _number(folder / "memory.max"), _number(folder / "memory.current")
        if limit is None or used is None:
            continue
        stat = _numbers(folder / "memory.stat")
        cache = stat.get("inactive_file", 0) + stat.get("active_file", 0)
        # What has to be written to a disk first cannot be taken back at once.
        unwritten = stat.get("file_dirty", 0) + stat.get("file_writeback", 0)
        yield FreeMemory(limit - used + max(cache - unwritten, 0), f"the cgroup {folder}")


def _cgroups(proc: Path) -> Iterator[Path]:
    """This process's cgroup and those above it, as far as they are mounted here."""
    group = next(
        (x.removeprefix("0::") for x in _lines(proc / "self/cgroup") if x[:3] == "0::"), ""
    )
    for line in _lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        if not group or after.split()[0] != "cgroup2":
            continue
        root, mount = before.split()[3:5]
        # A container often sees its own group as the mount's root, by whatever path.
        inside = group.removeprefix(root.rstrip("/")).lstrip("/")
        top = Path(mount)
        folder = top / inside if (top / inside).is_dir() else top
        for here in (folder, *folder.parents):
            yield here
            if here == top:
                break


def _numbers(path: Path) -> dict[str, int]:
    """From lines of a name, a number and perhaps a unit."""
    rows = (line.split() for line in _lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    """None where the file is missing or says "max"."""
    text = next(iter(_lines(path)), "")
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    """None of a file that is not there: other kernels and containers have fewer."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
