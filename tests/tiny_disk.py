"""A file system of its own that a test fills to its last byte."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

BALLAST = "ballast"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """80 MB, of which 20 are taken by a file: less room than a run leaves to others."""
    with mounted(tmp_path / "disk", "80m") as folder:
        (folder / BALLAST).write_bytes(bytes(20_000_000))
        yield folder


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Path]:
    """`size`: as mount(8) has it, such as "80m". Skips where mounting is not permitted."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount the tiny file system that this test fills")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a test that failed uses it


def fill(disk: Path) -> None:
    """Nothing can write a byte until `empty`."""
    with suppress(OSError), (disk / BALLAST).open("ab", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))


def empty(disk: Path) -> None:
    (disk / BALLAST).unlink()
