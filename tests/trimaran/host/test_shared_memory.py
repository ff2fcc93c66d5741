"""Names in shared memory are removed once nothing maps them. Any folder serves: /proc shows the same."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests import marked
from trimaran.host import shared_memory
from trimaran.host.shared_memory import (
    make_socket_folder,
    note_mapped,
    note_names,
    note_of,
    noting,
    remove_left,
    semaphore_prefix,
)

MAP = """
import mmap, subprocess, sys
*names, child = sys.argv[1:]
maps = []
for name in names:
    with open(name, "w+b") as file:
        file.write(b"x")
        file.flush()
        maps.append(mmap.mmap(file.fileno(), 1))
if child:
    started = subprocess.Popen([sys.executable, "-c", open(sys.argv[0]).read(), child, ""])
else:
    print("mapped", flush=True)
sys.stdin.read()
if child:
    started.wait()
"""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def shm(tmp_path: Path) -> Path:
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm"


@pytest.fixture
def start(shm: Path, tmp_path: Path) -> Generator[Start]:
    """start("a", child="b"): a process that maps the file a, and starts one that maps b."""
    script = tmp_path / "map.py"
    script.write_text(MAP)
    started: list[subprocess.Popen[str]] = []

    def start(*names: str, child: str = "") -> subprocess.Popen[str]:
        paths = [str(shm / name) for name in names]
        made = subprocess.Popen(
            [sys.executable, str(script), *paths, child and str(shm / child)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(made)
        assert made.stdout and made.stdout.readline() == "mapped\n"
        return made

    yield start
    for process in started:
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    """By the end of its input, and that of its child, which has the same."""
    assert process.stdin
    process.stdin.close()
    process.wait(30)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_process_and_its_children_map_is_noted_and_removed_once_they_are_gone(
    shm: Path, tmp_path: Path, start: Start
) -> None:
    note = note_of(tmp_path, "rollout-0")
    (shm / "of nobody").touch()
    other = start("other")
    life = start("psm_1", "ident-[0-1]-cpushm", child="psm_2")
    note_mapped(note, life.pid, shm)
    assert sorted(note.read_text().split()) == ["ident-[0-1]-cpushm", "psm_1", "psm_2"]
    assert remove_left(note, 0.0, shm) == []
    assert note.exists()
    end(life)
    removed = remove_left(note, 5.0, shm)
    assert sorted(removed) == ["ident-[0-1]-cpushm", "psm_1", "psm_2"]
    assert left(shm) == ["of nobody", "other"]
    assert not note.exists()
    assert other.poll() is None


def test_a_folder_of_sockets_is_removed_once_nothing_listens_in_it(tmp_path: Path) -> None:
    note = note_of(tmp_path, "rollout-0")
    # The path of a socket has at most 107 bytes; that of tmp_path may have as many.
    with TemporaryDirectory(dir="/tmp") as short, socket.socket(socket.AF_UNIX) as listening:
        shm = Path(short)
        folder = make_socket_folder(note, shm)
        other = make_socket_folder(note_of(tmp_path, "x"), shm)
        listening.bind(str(folder / "s"))
        assert remove_left(note, 0.0, shm) == []
        listening.close()
        assert remove_left(note, 0.0, shm) == [folder.name]
        assert list(shm.iterdir()) == [other]
        make_socket_folder(note, shm)  # of the next life


def test_what_is_mapped_at_a_start_is_noted_before_its_maker_can_do_so(
    shm: Path, tmp_path: Path, start: Start
) -> None:
    note = note_of(tmp_path, "rollout-0")
    (shm / "of nobody").touch()
    with noting(note, shm):
        children = subprocess_ids()
        life = start("psm_1")
        deadline = time.monotonic() + 30
        while not note.exists() or note.read_text() != "psm_1\n":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        end(life)
    assert children and not children & subprocess_ids()
    assert remove_left(note, 5.0, shm) == ["psm_1"]
    assert left(shm) == ["of nobody"] and left(note.parent) == []


def subprocess_ids() -> set[int]:
    """Of the processes that note."""
    return {each.pid for each in psutil.Process().children() if "-S" in marked.words(each)}


def test_who_cannot_note_says_so_in_a_line(tmp_path: Path) -> None:
    words = [str(tmp_path / "note"), str(tmp_path / "missing"), str(os.getpid())]
    command = [sys.executable, "-I", "-S", shared_memory.__file__, *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert "note: what is shared is not noted" in line and "missing" in line


def test_a_semaphore_is_known_by_its_inode_and_by_the_name_of_its_run(
    shm: Path, tmp_path: Path, start: Start
) -> None:
    """Whatever makes one maps it under another name, which is then removed."""
    note, own = note_of(tmp_path, "reward"), f"sem.{semaphore_prefix(tmp_path)}-1"
    note_names(note, [])
    maker = start("sem.Ab3xYz")
    (shm / own).hardlink_to(shm / "sem.Ab3xYz")
    (shm / "sem.Ab3xYz").unlink()
    (shm / f"sem.{semaphore_prefix(tmp_path / 'other')}-1").touch()
    assert remove_left(note, 0.0, shm) == []
    note_mapped(note_of(tmp_path, "rollout-0"), maker.pid, shm)
    assert note_of(tmp_path, "rollout-0").read_text().split() == [own]
    end(maker)
    assert remove_left(note, 5.0, shm) == [own]
    assert len(left(shm)) == 1


def test_what_is_no_note_removes_nothing_and_harms_nothing(shm: Path, tmp_path: Path) -> None:
    (shm / "psm_1").touch()
    note = note_of(tmp_path, "rollout-0")
    note.mkdir(parents=True)
    assert remove_left(note, 0.0, shm) == []
    note.rmdir()
    note.write_bytes(b"\xff\xfe\n*\n")
    assert remove_left(note, 0.0, shm) == []
    assert left(shm) == ["psm_1"]


@pytest.mark.parametrize("pattern", ["../precious", "/etc/*", "sub/x", "../*", "*"])
def test_a_note_names_nothing_outside(shm: Path, tmp_path: Path, pattern: str) -> None:
    (tmp_path / "precious").touch()
    (shm / "sub").mkdir()
    (shm / "sub" / "x").touch()
    note = note_of(tmp_path, "reward")
    note_names(note, [pattern])
    assert remove_left(note, 0.0, shm) == []
    assert (tmp_path / "precious").exists() and (shm / "sub" / "x").exists()
