"""One copy for several receivers of a host: who may write to it, and when. Processes that die are real."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from tests.weight_sync.ends import (
    blocks_of,
    by_relay,
    from_memory,
    holds,
    impatient_relay,
    make_snapshot,
    make_values,
    snapshot_of,
    stage,
    started,
    take_from_memory,
)
from trimaran.errors import TransferError
from trimaran.types import Delta, RelaySource, VersionId
from weights.delta import delta_changes
from weights.memory.borrowed import BorrowedMemory
from weights.memory.host_memory import HostMemory, MemoryReader
from weights.receiving import receiver as receiver_module

NEXT = VersionId(0, 2)


@pytest.fixture
def ends():
    with started(receivers=2, relay=impatient_relay) as ([sender], [owner, neighbour]):
        yield sender, owner, neighbour


def shared(snapshot, owner, *others, path="") -> RelaySource:
    path = path or (owner.staged or owner.held).shadow.path
    return RelaySource(blocks_of(snapshot), (owner.peer, *(one.peer for one in others)), None, path)


def delta_of(snapshot) -> Delta:
    return snapshot.delta.describe(blocks_of(snapshot))


def follow(sender, live, values=None):
    """The version after `live`, which the sender holds with its delta."""
    following = snapshot_of(values or make_values(2), reuse=live, keep_delta=True)
    sender.hold(following)
    return following


def by_delta(sender, following) -> RelaySource:
    return by_relay(following, sender.peer, delta=delta_of(following))


def shared_by_delta(following, owner) -> RelaySource:
    return replace(shared(following, owner), delta=delta_of(following))


def number_of(shadow) -> int:
    return os.stat(shadow.path).st_ino


def open_here() -> set[int]:
    """Numbers of this process's open files. One is that of the folder, which is closed by then."""
    with os.scandir("/proc/self/fd") as entries:
        return {entry.stat().st_ino for entry in entries}


def borrow(neighbour, snapshot, owner, step=1, **options):
    return stage(neighbour, snapshot, shared(snapshot, owner), step=step, **options)


def test_a_neighbour_reads_the_owners_memory_and_takes_nothing(ends):
    _, owner, neighbour = ends
    snapshot = make_snapshot()
    own = stage(owner, snapshot, from_memory(snapshot))
    found = borrow(neighbour, snapshot, owner)
    assert (found.root, found.num_blocks) == (own.root, own.num_blocks)
    assert own.path == owner.staged.shadow.path and found.path == ""
    assert found.bytes_by_transport == {}
    assert holds(neighbour, snapshot)
    assert number_of(neighbour.staged.shadow) == number_of(owner.staged.shadow)


@pytest.mark.parametrize("keeps", [False, True])
def test_the_owner_writes_over_it_once_nothing_reads_it(ends, keeps):
    """A keeper has two shadows. All are mapped once, here and by the workers of both engines."""
    _, owner, neighbour = ends
    places, mapped, reader = set(), set(), MemoryReader()
    for step in range(1, 6):
        snapshot = make_snapshot(step)
        stage(owner, snapshot, from_memory(snapshot), step=step, keep_held=keeps)
        borrow(neighbour, snapshot, owner, step)
        assert holds(neighbour, snapshot)
        places |= {one.staged.shadow.buffer.data_ptr() for one in (owner, neighbour)}
        shadow = neighbour.staged.shadow
        reader.forget_gone()
        mapped.add(reader.map(shadow.path, shadow.memory.size).data_ptr())
        neighbour.keep(VersionId(0, step))
        owner.keep(VersionId(0, step))
        assert neighbour.held is None
    assert len(places) == 2 * len(mapped) == 2 * (1 + keeps)


@pytest.mark.parametrize("way", ["blocks", "delta", "kept beside"])
def test_while_a_neighbour_is_late_the_owner_writes_elsewhere(ends, way):
    sender, owner, neighbour = ends
    live = snapshot_of(make_values(1))
    take_from_memory(owner, live)
    borrow(neighbour, live, owner)
    before = live.buffer.clone()
    changed = {name: value.clone() for name, value in make_values(1).items()}
    changed["norm"][2] = 7.0
    following = follow(sender, live, changed)
    delta = delta_of(following) if way == "delta" else None
    source = by_relay(following, sender.peer, delta=delta)
    stage(owner, following, source, step=2, keep_held=way == "kept beside")
    assert holds(owner, following)
    assert torch.equal(neighbour.staged.shadow.buffer, before)
    assert number_of(neighbour.staged.shadow) != number_of(owner.staged.shadow)


def test_a_delta_is_undone_beside_what_a_neighbour_reads(ends):
    sender, owner, neighbour = ends
    live = snapshot_of(make_values(1))
    before = live.buffer.clone()
    take_from_memory(owner, live)
    following = follow(sender, live)
    stage(owner, following, by_delta(sender, following), step=2, attempt="x")
    borrow(neighbour, following, owner, step=2)
    owner.discard(NEXT, "x")
    assert torch.equal(owner.held.shadow.buffer, before)
    assert holds(neighbour, following)


@pytest.mark.parametrize("num_changed", [1, 37 * 11], ids=["an element", "plain blocks"])
def test_a_neighbour_knows_what_a_delta_has_changed(ends, num_changed, monkeypatch):
    """Without the base: positions are in the delta, and values in the owner's shadow."""
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 10)  # of so few elements
    sender, owner, neighbour = ends
    live = snapshot_of(make_values(1))
    take_from_memory(owner, live)
    changed = {name: value.clone() for name, value in make_values(1).items()}
    changed["embed"].view(-1)[:num_changed] += 1
    changed["proj"][1, 3] = 9.0
    following = follow(sender, live, changed)
    stage(owner, following, by_delta(sender, following), step=2)
    found = stage(neighbour, following, shared_by_delta(following, owner), step=2)
    assert found.path == ""
    own, found = (
        list(one.staged.shadow.changes.tensors(following.manifest.tensors))
        for one in (owner, neighbour)
    )
    assert [one.info.name for one in found] == ["embed", "proj"]
    for one, other in zip(own, found, strict=True):
        flat = changed[other.info.name].view(-1)
        assert torch.equal(flat[other.positions], other.values)
        assert set(one.positions.tolist()) <= set(other.positions.tolist())
    assert neighbour.staged.shadow.changes.base_root == owner.staged.shadow.changes.base_root


def test_without_the_pieces_a_neighbour_loads_everything(ends, caplog):
    _, owner, neighbour = ends
    live = snapshot_of(make_values(1))
    take_from_memory(owner, live)
    following = snapshot_of(make_values(2), reuse=live, keep_delta=True)
    stage(owner, following, from_memory(following), step=2)
    stage(neighbour, following, shared_by_delta(following, owner), step=2)
    assert holds(neighbour, following) and neighbour.staged.shadow.changes is None
    assert "is loaded whole: relay: no peer is left" in caplog.text


def test_a_stage_that_is_cut_off_gives_back_what_it_has_borrowed(ends, monkeypatch):
    sender, owner, neighbour = ends
    live = snapshot_of(make_values(1))
    take_from_memory(owner, live)
    following = follow(sender, live)
    stage(owner, following, by_delta(sender, following), step=2)

    def cut_off(intake):
        raise RuntimeError("the end")

    monkeypatch.setattr(receiver_module, "fetch_pieces", cut_off)
    with pytest.raises(RuntimeError, match="the end"):
        stage(neighbour, following, shared_by_delta(following, owner), step=2)
    assert owner.staged.shadow.claim()


def test_what_a_neighbour_discards_or_takes_another_way_goes_back(ends):
    _, owner, neighbour = ends
    snapshot, following = make_snapshot(1), make_snapshot(2)
    take_from_memory(owner, snapshot)
    borrow(neighbour, snapshot, owner, attempt="x")
    neighbour.discard(VersionId(0, 1), "x")
    assert owner.held.shadow.claim()
    owner.held.shadow.memory.release()
    borrow(neighbour, snapshot, owner)
    stage(neighbour, following, from_memory(following), step=2)
    assert holds(neighbour, following)
    assert owner.held.shadow.claim()


@pytest.mark.parametrize(
    ("why", "message"),
    [("written to", "its owner writes to it"), ("wrong", "arrived with"), ("gone", "gone")],
)
def test_a_neighbour_that_cannot_read_it_takes_a_copy_of_its_own(ends, caplog, why, message):
    sender, owner, neighbour = ends
    snapshot = make_snapshot()
    sender.hold(snapshot)
    take_from_memory(owner, snapshot)
    path = f"/proc/{os.getpid()}/fd/99999" if why == "gone" else ""
    if why == "written to":
        owner.held.shadow.claim()
    if why == "wrong":
        owner.held.shadow.buffer[: snapshot.layout.pieces[-1].end] += 1
    found = stage(neighbour, snapshot, shared(snapshot, owner, sender, path=path))
    assert holds(neighbour, snapshot)
    assert found.path == neighbour.staged.shadow.path
    assert found.num_bytes > 0
    assert message in caplog.text
    assert owner.held.shadow.claim(), "nothing is left of the try"


def test_a_neighbour_gives_its_own_memory_up(ends):
    """The host has one copy again where there were two."""
    _, owner, neighbour = ends
    snapshot = make_snapshot()
    take_from_memory(owner, snapshot)
    take_from_memory(neighbour, snapshot)
    number = number_of(neighbour.held.shadow)
    assert number in open_here()
    borrow(neighbour, snapshot, owner)
    assert number not in open_here()


def test_an_owner_loads_its_own_copy_again(ends):
    """Whose engine has a wrong block, or has not loaded what was staged. Nothing needs to have another."""
    _, owner, neighbour = ends
    snapshot = make_snapshot()
    stage(owner, snapshot, from_memory(snapshot))
    for _ in range(2):
        place = owner.staged.shadow.buffer.data_ptr()
        found = stage(owner, snapshot, shared(snapshot, neighbour, path=owner.staged.shadow.path))
        assert found.path == owner.staged.shadow.path and not found.num_bytes
        assert owner.staged.shadow.buffer.data_ptr() == place
        owner.keep(VersionId(0, 1))
        stage(owner, snapshot, shared(snapshot, neighbour, path=owner.held.shadow.path))
    borrow(neighbour, snapshot, owner)
    assert holds(neighbour, snapshot)


def test_a_follower_pulls_what_is_borrowed_until_it_is_kept(ends):
    _, owner, neighbour = ends
    snapshot = make_snapshot()
    take_from_memory(owner, snapshot)
    borrow(neighbour, snapshot, owner)
    with started(senders=0, relay=impatient_relay) as (_, [follower]):
        stage(follower, snapshot, by_relay(snapshot, neighbour.peer))
        assert holds(follower, snapshot)
        neighbour.keep(VersionId(0, 1))
        with pytest.raises(TransferError, match="holds other weights"):
            stage(follower, snapshot, by_relay(snapshot, neighbour.peer))


@contextmanager
def process(code: str, *arguments: str):
    """Says one line, and waits."""
    lines = f"import sys, time\n{code}\ntime.sleep(600)"
    command = [sys.executable, "-c", lines, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        try:
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


BORROW = """
from weights.memory.borrowed import BorrowedMemory
memory = BorrowedMemory(sys.argv[1], 4096)
print(int(memory.buffer[7]), flush=True)
"""
OWN = """
from weights.memory.host_memory import HostMemory, MemoryReader
memory = HostMemory(4096)
memory.claim()
memory.buffer[7] = 42
memory.release()
print(memory.path, flush=True)
"""


def test_a_process_that_dies_gives_back_what_it_has_borrowed():
    memory = HostMemory(4096)
    memory.buffer[7] = 42
    with process(BORROW, memory.path) as (neighbour, said):
        assert said == "42"
        assert not memory.claim()
        neighbour.send_signal(signal.SIGSTOP)
        assert not memory.claim(), "one that is frozen still reads"
        neighbour.kill()
        neighbour.wait(30)
        assert memory.claim()


def test_what_is_borrowed_outlives_its_owner():
    with process(OWN) as (owner, path):
        memory = BorrowedMemory(path, 4096)
        owner.kill()
        owner.wait(30)
    assert int(memory.buffer[7]) == 42
    memory.release()
    memory.lease()
    with pytest.raises(TransferError, match="the owner's memory is gone"):
        BorrowedMemory(path, 4096)


def test_one_writes_or_others_read():
    memory = HostMemory(4096)
    first, second = BorrowedMemory(memory.path, 4096), BorrowedMemory(memory.path, 4096)
    assert not memory.claim()
    first.release()
    assert not memory.claim()
    second.release()
    assert memory.claim()
    for late in (first.lease, lambda: BorrowedMemory(memory.path, 4096)):
        with pytest.raises(TransferError, match="its owner writes to it"):
            late()
    memory.release()
    first.lease()
    assert not memory.claim()
