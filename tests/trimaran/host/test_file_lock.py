"""File systems that lock nothing."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trimaran.errors import InputError
from trimaran.host.file_lock import try_lock
from trimaran.host.places import host_lock
from trimaran.run.device_turns import DeviceTurn
from trimaran.run.folder import locked


def lock_run(folder: Path) -> None:
    with locked(folder):
        pass


def lock_host(folder: Path) -> None:
    with host_lock(folder / "model.lock", 1, "fetching"):
        pass


def take_turn(folder: Path) -> None:
    asyncio.run(DeviceTurn(folder, (0,), "trainer-0").take(1))


@pytest.mark.parametrize("code", [errno.EBADF, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("lock", [lock_run, lock_host, take_turn])
def test_a_file_system_without_locks_is_reported_with_what_helps(
    lock: Callable[[Path], None], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(file: int, kind: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    reported = (
        rf"{tmp_path}.*: cannot be locked .*\({re.escape(os.strerror(code))}\); name a folder on"
    )
    with pytest.raises(InputError, match=reported):
        lock(tmp_path)


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first, second = (os.open(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert try_lock(first, path) and not try_lock(second, path)
    assert not try_lock(second, path, fcntl.LOCK_SH)
    os.close(first)
    assert try_lock(second, path, fcntl.LOCK_SH)
    os.close(second)
