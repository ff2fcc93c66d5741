"""The sender's memory, copied once by a receiver on the same machine."""

import os
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.weight_sync.ends import (
    CONFIG,
    CPU,
    big_snapshot,
    from_memory,
    holds,
    make_snapshot,
    make_values,
    snapshot_of,
    stage,
    started,
    take_from_memory,
)
from trimaran.errors import TransferError
from trimaran.types import Transport
from weights.memory import host_memory as memory
from weights.receiving.receiver import WeightReceiver
from weights.transports import memory_carrier
from weights.transports.memory_carrier import MemoryCarrier, host_name


@pytest.fixture
def receiver():
    with started(senders=0) as (_, [receiver]):
        yield receiver


def test_large_blocks_are_copied_in_chunks():
    snapshot = big_snapshot(10_007, num_blocks=3)
    carriers = {Transport.MEMORY: MemoryCarrier(chunk_bytes=1000)}
    with closing(WeightReceiver(CPU, 0, CONFIG, carriers=carriers)) as receiver:
        stage(receiver, snapshot, from_memory(snapshot))
        assert holds(receiver, snapshot)


def test_memory_that_is_gone_or_another_is_named(receiver):
    snapshot = make_snapshot()
    gone = f"/proc/{os.getpid()}/fd/99999"
    with pytest.raises(TransferError, match=rf"{gone}: the owner's memory is gone"):
        stage(receiver, snapshot, from_memory(snapshot, gone))
    other = big_snapshot(100)
    small = f"holds 128 bytes; .* asks for {snapshot.buffer.numel()}"
    with pytest.raises(TransferError, match=small):
        stage(receiver, snapshot, from_memory(snapshot, other.path))
    assert receiver.staged is None


def test_only_memory_of_this_user_is_opened(receiver, tmp_path):
    """A path comes over the wire: to open a pipe lets its writer go on, to open a device may act."""
    snapshot = make_snapshot()
    take_from_memory(receiver, snapshot)  # its own memory stays open
    descriptors = set(os.listdir("/proc/self/fd"))
    pipe, file = tmp_path / "pipe", tmp_path / "file"
    os.mkfifo(pipe)
    file.write_bytes(snapshot.buffer.numpy().tobytes())
    writers = []
    writing = threading.Thread(target=lambda: writers.append(os.open(pipe, os.O_WRONLY)))
    writing.start()
    held = [os.open(pipe, os.O_PATH), os.open(file, os.O_RDONLY), *os.pipe()]
    hostile = [str(pipe), str(file), f"{snapshot.path}/../{Path(snapshot.path).name}", "x" * 10**6]
    hostile += [f"/proc/{os.getpid()}/fd/{descriptor}" for descriptor in held]
    for path in hostile:
        with pytest.raises(TransferError, match="names no memory|is not memory of this user"):
            stage(receiver, snapshot, from_memory(snapshot, path))
        assert not writers, path
    reader = os.open(pipe, os.O_RDONLY)
    writing.join(30)
    for descriptor in (*held, reader, *writers):
        os.close(descriptor)
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_memory_of_another_user_is_refused(receiver, monkeypatch):
    snapshot = make_snapshot()
    monkeypatch.setattr(memory.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(TransferError, match="is not memory of this user"):
        stage(receiver, snapshot, from_memory(snapshot))


def test_memory_that_could_shrink_is_refused(receiver):
    """A page that is gone would be a SIGBUS."""
    snapshot = make_snapshot()
    with pytest.raises(PermissionError):
        os.truncate(snapshot.path, 0)
    descriptor = os.memfd_create("unsealed")
    os.truncate(descriptor, snapshot.buffer.numel())
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    with pytest.raises(TransferError, match=f"{path}: could shrink"):
        stage(receiver, snapshot, from_memory(snapshot, path))
    os.close(descriptor)


def test_what_is_offered_again_stays_mapped_and_the_rest_is_let_go(receiver):
    snapshot, other = make_snapshot(1), make_snapshot(2)
    stage(receiver, snapshot, from_memory(snapshot))
    mapped = num_mapped()
    next_one = snapshot_of(make_values(3), reuse=snapshot)
    assert next_one.path == snapshot.path
    stage(receiver, next_one, from_memory(next_one))
    assert holds(receiver, next_one)
    assert num_mapped() == mapped > 0
    stage(receiver, other, from_memory(other))
    assert holds(receiver, other)
    assert num_mapped() == mapped > 0


def num_mapped():
    maps = Path("/proc/self/maps").read_text()
    return sum("trimaran-weights" in line and "r--s" in line for line in maps.splitlines())


def test_a_snapshot_that_is_replaced_under_way_is_never_staged(receiver, monkeypatch):
    """The first blocks are of one version, the last ones of the next."""
    snapshot, other = make_snapshot(1), make_snapshot(2)
    copy, count = np.copyto, iter(range(100))

    def replace_after_three(*arguments):
        if next(count) == 3:
            snapshot.buffer.copy_(other.buffer)
        copy(*arguments)

    monkeypatch.setattr(memory_carrier.np, "copyto", replace_after_three)
    with pytest.raises(TransferError, match=r"block 4 .*the sender may have replaced its snapshot"):
        stage(receiver, snapshot, from_memory(snapshot))
    assert receiver.staged is None


def test_a_deadline_ends_the_copy(receiver):
    snapshot = make_snapshot()
    with pytest.raises(TransferError, match="the stage did not end by its deadline"):
        stage(receiver, snapshot, from_memory(snapshot), timeout=1e-6)
    take_from_memory(receiver, snapshot)  # there is memory from here on
    with pytest.raises(TransferError, match="not copied by the deadline"):
        stage(receiver, snapshot, from_memory(snapshot), timeout=1e-6)


def test_only_processes_that_share_memory_have_one_host_name(monkeypatch):
    here = host_name()
    assert here == host_name() != ""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert host_name() != here
