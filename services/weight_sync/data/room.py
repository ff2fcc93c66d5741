"""How much memory this process may still take before the kernel's OOM killer ends somebody.

From the kernel's files: /proc/meminfo for the machine, and the memory
cgroup of this process with all those above it, of version 2 or 1. Memory files
(memfd) are limited by nothing else: not by the size of /dev/shm, and under strict
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
"""Version 1 writes about 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Room:
    """Example: find_room() is Room(21_833_461_760, "this machine")"""

    num_bytes: int
    where: str
    """What bounds it, in words."""


def require_room(num_bytes: int, what: str) -> None:
    """Raises TransferError, which names `what`, unless so much can be taken now."""
    room = find_room()
    if num_bytes + MARGIN_BYTES > room.num_bytes:
        raise TransferError(
            f"no room for {num_bytes / 2**20:.0f} MiB of {what} on the host:"
            f" {max(room.num_bytes, 0) / 2**20:.0f} MiB are left in {room.where}"
        )


def find_room(proc: Path = Path("/proc")) -> Room:
    """The narrowest of all limits; what the kernel can take back from its page cache is room."""
    return min(_rooms(proc), key=lambda room: room.num_bytes)


def _rooms(proc: Path) -> Iterator[Room]:
    machine = _numbers(proc / "meminfo")
    available = machine.get("MemAvailable:", UNLIMITED >> 10) + machine.get("SwapFree:", 0)
    yield Room(available << 10, "this machine")
    for folder, names in _cgroups(proc):
        limit, used = _number(folder / names.limit), _number(folder / names.used)
        if limit is None or used is None or limit >= UNLIMITED:
            continue
        stat = _numbers(folder / "memory.stat")
        cache = sum(stat.get(names.prefix + key, 0) for key in ("inactive_file", "active_file"))
        stuck = sum(stat.get(names.prefix + key, 0) for key in names.stuck)
        yield Room(limit - used + max(cache - stuck, 0), f"the cgroup {folder}")


@dataclass(frozen=True, slots=True)
class _Names:
    limit: str
    used: str
    prefix: str
    """Before the keys of memory.stat that include the groups below."""
    stuck: tuple[str, ...]
    """Cache that has to be written to a disk first."""


V2 = _Names("memory.max", "memory.current", "", ("file_dirty", "file_writeback"))
V1 = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_", ("dirty", "writeback"))


def _cgroups(proc: Path) -> Iterator[tuple[Path, _Names]]:
    """This process's memory cgroup and those above it, as far as they are mounted here."""
    groups = dict(_groups(proc / "self/cgroup"))
    for line in _lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        if kind == "cgroup2":
            names, group = V2, groups.get("")
        elif kind == "cgroup" and "memory" in options.split(","):
            names, group = V1, groups.get("memory")
        else:
            continue
        if group is None:
            continue
        # A container often sees its own group as the mount's root, by whatever path.
        inside = group.removeprefix(root.rstrip("/")).lstrip("/")
        top = Path(mount)
        folder = top / inside if (top / inside).is_dir() else top
        for here in (folder, *folder.parents):
            yield here, names
            if here == top:
                break


def _groups(path: Path) -> Iterator[tuple[str, str]]:
    """(controller, path of its group); version 2 has no controller's name."""
    for line in _lines(path):
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, group


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
