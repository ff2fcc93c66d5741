"""Named shared memory that outlives a process that is killed: files in /dev/shm.

vLLM's processes, the collectives below them and the pools of reward workers share memory and locks
under names there. A helper of multiprocessing removes them when their maker is gone; a kill of the
whole process group takes that one along, and they would stay until the host restarts. So a service
notes the names in its run folder, `logs/NAME.shm`, while it starts (`noting`) and once it is up, and its successor removes what is left: its
next life, or who has started it once it is gone. What a living process maps stays, whosever it is.

vLLM's processes and reward workers also meet at sockets, which they would leave in the folder for temporary files. A
service has a folder for them beside the memory: it exists on every host, is writable in containers, and
its path is short, as that of a socket must be.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = Path("/dev/shm")
PROC = Path("/proc")
SUFFIX = ".shm"
ENDING_SECONDS = 2.0
"""For processes that were just killed to be gone."""
POLL_SECONDS = 0.1
NOTE_SECONDS = 0.5
"""Between two looks while a service starts."""


def note_of(run_folder: Path, name: str) -> Path:
    """The note of the service `name`, such as rollout-0; beside its log."""
    return run_folder / "logs" / f"{name}{SUFFIX}"


def make_socket_folder(note: Path, folder: Path = FOLDER) -> Path:
    """An empty one for the sockets of the note's service; `remove_left` removes it."""
    made = _socket_folder(note, folder)
    made.mkdir(mode=0o700)
    return made


def _socket_folder(note: Path, folder: Path) -> Path:
    return folder / f"{semaphore_prefix(note.parent.parent)}-{note.stem}"


def note_mapped(note: Path, pid: int | None = None, folder: Path = FOLDER) -> None:
    """Notes what this process and all that it has started map at the moment. `pid`: another's."""
    note_names(note, sorted(_mapped(_tree(pid or os.getpid()), folder)))


@contextmanager
def noting(note: Path, folder: Path = FOLDER) -> Generator[None]:
    """While the block runs, what this process and all that it has started map is noted again and again.
    So it is known what a process leaves that is killed in the middle.

    By a process beside this one: a thread would be in the way of what forks in the block.
    """
    here = (sys.executable, "-I", "-S", __file__)
    words = (str(note), str(folder), str(os.getpid()))
    beside = subprocess.Popen([*here, *words], stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        beside.kill()
        beside.wait()


def _note_on(note: Path, folder: Path, parent: int) -> None:
    """As long as the process lives that has started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; our end comes from there
    known = set[str]()
    while os.getppid() == parent:
        if new := _mapped(_tree(parent), folder) - known:
            known |= new
            note_names(note, sorted(known))
        time.sleep(NOTE_SECONDS)


def note_names(note: Path, names: Iterable[str]) -> None:
    """In place of those before."""
    note.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(note)
    partial.write_text("".join(f"{name}\n" for name in names))
    partial.replace(note)


def _partial(note: Path) -> Path:
    return note.with_name(f"{note.name}.partial")


def semaphore_prefix(run_folder: Path) -> str:
    """The prefix of the names of a run's reward service's semaphores. Not by the run's id: runs of two
    managers on one machine may have the same."""
    return f"trimaran-{hashlib.sha256(bytes(run_folder.resolve())).hexdigest()[:16]}"


def remove_left(note: Path, seconds: float = ENDING_SECONDS, folder: Path = FOLDER) -> list[str]:
    """Removes what was noted and no process uses, and the note once nothing of it is left. What is
    still used is looked at again for `seconds`. The names that were removed."""
    removed: list[str] = []
    deadline = time.monotonic() + seconds
    # Names first: a process that makes one later may not have mapped it yet.
    while names := _find(note, folder):
        unused = names - _mapped(_processes(), folder) - _with_sockets(folder)
        for name in unused:
            with suppress(OSError):  # another one was faster, or may not
                (shutil.rmtree if (folder / name).is_dir() else os.unlink)(folder / name)
                removed.append(name)
        if unused == names or time.monotonic() >= deadline:
            break
        time.sleep(POLL_SECONDS)
    if not _find(note, folder):
        with suppress(OSError):  # whatever stands there is no note of ours
            note.unlink(missing_ok=True)
            _partial(note).unlink(missing_ok=True)
    return removed


def _find(note: Path, folder: Path) -> set[str]:
    """Names in `folder` that were noted, that of the folder of sockets, and semaphores that bear the name
    of the note's own run folder; never a path that leads elsewhere."""
    noted = {_socket_folder(note, folder).name}
    with suppress(OSError):  # there is none, or it is no file of ours
        noted.update(note.read_text(errors="surrogateescape").splitlines())
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    own = f"sem.{semaphore_prefix(note.parent.parent)}-"
    return {name for name in names if name in noted or name.startswith(own)}


def _with_sockets(folder: Path) -> set[str]:
    """Names in `folder` of folders in which a living process has a socket."""
    start = f"{folder}/"
    lines = (PROC / "net" / "unix").read_text(errors="replace").splitlines()
    # The path is the last of at most eight fields, and not there for a socket without a name.
    paths = [fields[7] for line in lines if len(fields := line.split(maxsplit=7)) == 8]
    found = (path.removeprefix(start).partition("/") for path in paths if path.startswith(start))
    return {name for name, slash, _ in found if slash}


def _mapped(pids: Iterable[int], folder: Path) -> set[str]:
    """Names in `folder` that these processes map, and that are still there.

    By device and inode: a semaphore is mapped under a name of its own before it is linked to the one
    that others find it by.
    """
    start = f"{folder}/"
    mapped: set[tuple[str, str]] = set()
    for pid in pids:
        with suppress(
            OSError
        ):  # gone, or another user's: that one cannot map what only we may read
            for line in (PROC / str(pid) / "maps").read_text(errors="replace").splitlines():
                # proc_pid_maps(5): device, inode and path are the last fields.
                fields = line.split(maxsplit=5)
                if len(fields) == 6 and fields[5].startswith(start):
                    mapped.add((fields[3], fields[4]))
    names = {name: _identity(folder / name) for name in os.listdir(folder)}
    return {name for name, identity in names.items() if identity in mapped}


def _identity(path: Path) -> tuple[str, str] | None:
    """Device and inode, as proc_pid_maps(5) writes them; None for a name that is gone."""
    try:
        found = path.lstat()
    except OSError:
        return None
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return device, str(found.st_ino)


def _processes() -> list[int]:
    return [int(entry) for entry in os.listdir(PROC) if entry.isdecimal()]


def _tree(root: int) -> set[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for pid in _processes():
        with suppress(OSError):
            # The name stands in brackets and may hold anything. proc_pid_stat(5): the fourth field.
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(pid)
    found, new = set[int](), {root}
    while new:
        found |= new
        new = {child for pid in new for child in children.get(pid, ())} - found
    return found


if __name__ == "__main__":
    try:
        _note_on(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: what is shared is not noted while the service starts: {error}")
