"""Sender and receivers over real gloo, in threads and, where one freezes, in processes."""

import multiprocessing
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from services.weight_sync.manifest import manifest_to_json, offsets
from services.weight_sync.receiver import Proof, WeightReceiver
from services.weight_sync.sender import WeightSender
from services.weight_sync.shadow import Shadow, open_shadow
from services.weight_sync.snapshot import Snapshot, take_snapshot
from trimaran.device import Device
from trimaran.errors import TransferError
from trimaran.types import PolicyVersion, TransferGroup, VersionId, VersionState

CPU = Device("cpu", "gloo")
BUCKET = 256  # the small snapshot travels in four
LONG = 30.0


def make_snapshot(seed: int = 0) -> Snapshot:
    generator = torch.Generator().manual_seed(seed)
    return take_snapshot(
        [
            ("embed", torch.randn(37, 11, generator=generator).to(torch.bfloat16)),
            ("empty", torch.zeros(0, 4)),
            ("norm", torch.randn(5, generator=generator)),
            ("steps", torch.arange(3)),
        ]
    )


def version_of(snapshot: Snapshot, step: int = 1) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), snapshot.manifest.root, VersionState.STAGING)


def group_of(group_id: int, world_size: int = 2) -> TransferGroup:
    return TransferGroup(group_id, f"nonce-{group_id}", world_size, "")


def stage(receiver, snapshot, group, rank=1, timeout=LONG, step=1):
    version = version_of(snapshot, step)
    return receiver.stage(version, snapshot.manifest, group, rank, BUCKET, timeout)


def transfer(pool, sender, receivers, snapshot, group, timeout=LONG):
    stages = [
        pool.submit(stage, receiver, snapshot, group, rank, timeout)
        for rank, receiver in enumerate(receivers, start=1)
    ]
    sent = pool.submit(sender.send, snapshot, group.group_id, BUCKET, timeout)
    return sent, stages


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def ends():
    sender, receivers = WeightSender(CPU), [WeightReceiver(CPU), WeightReceiver(CPU)]
    yield sender, receivers
    sender.close()
    for receiver in receivers:
        receiver.close()


def test_two_receivers_take_two_versions_through_one_group(pool, ends):
    sender, receivers = ends
    group = sender.open(group_of(1, 3), LONG)
    assert sender.open(group_of(1, 3), LONG) == group
    for seed in (1, 2):
        snapshot = make_snapshot(seed)
        sent, stages = transfer(pool, sender, receivers, snapshot, group)
        assert sent.result() == snapshot.buffer.numel()
        for receiver, staged in zip(receivers, stages, strict=True):
            assert staged.result() == snapshot.manifest.root
            assert receiver.staged.version == version_of(snapshot)
            assert torch.equal(receiver.staged.shadow.buffer, snapshot.buffer)
            receiver.discard(VersionId(0, 1))
            assert receiver.staged is None


@pytest.fixture(scope="module")
def child():
    """Another process with torch loaded; one that was killed is replaced."""
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        yield processes


def test_another_process_maps_the_shadow(child):
    snapshot = make_snapshot()
    shadow = Shadow(snapshot.manifest)
    shadow.buffer.copy_(snapshot.buffer)
    tree = manifest_to_json(snapshot.manifest)
    names, total = child.apply_async(_read_shadow, (shadow.path, tree)).get(LONG)
    assert names == [tensor.name for tensor in snapshot.manifest.tensors]
    assert total == sum(tensor.double().sum().item() for _, tensor in shadow.tensors())
    path = shadow.path
    del shadow
    with pytest.raises(TransferError, match="gone"):
        open_shadow(path, tree)


def _read_shadow(path, tree):
    tensors = list(open_shadow(path, tree))
    return [name for name, _ in tensors], sum(tensor.double().sum().item() for _, tensor in tensors)


def test_a_changed_byte_names_its_tensor():
    snapshot = make_snapshot()
    shadow = Shadow(snapshot.manifest)
    shadow.buffer.copy_(snapshot.buffer)
    shadow.buffer[offsets(snapshot.manifest.tensors)[2]] ^= 1
    proof = Proof(shadow)
    proof.take(shadow.buffer.numel())
    with pytest.raises(TransferError, match="norm: arrived with digest"):
        proof.finish()


def test_bytes_that_differ_from_the_manifest_are_not_staged(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    lie = Snapshot(snapshot.manifest, snapshot.buffer.clone())
    lie.buffer[3] ^= 64
    sent, [staged] = transfer(pool, sender, [receiver], lie, sender.open(group_of(1), LONG))
    with pytest.raises(TransferError, match="embed: arrived"):
        staged.result()
    assert receiver.staged is None
    sent.result()


def test_a_sender_with_fewer_bytes_does_not_pass(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    short = Snapshot(snapshot.manifest, snapshot.buffer[:BUCKET].clone())
    group = sender.open(group_of(1), LONG)
    staged = pool.submit(stage, receiver, snapshot, group, 1, 1.0)
    pool.submit(sender.send, short, 1, BUCKET, 1.0).result()
    with pytest.raises(TransferError):
        staged.result()
    assert receiver.staged is None


def test_nobody_joins_with_another_nonce(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = replace(sender.open(group_of(1), LONG), nonce="stale")
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, group, timeout=1.0)
    for future in (sent, staged):
        with pytest.raises(TransferError):
            future.result()


def test_a_closed_group_answers_at_once(ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    old = sender.open(group_of(1), LONG)
    sender.open(group_of(2), LONG)
    with pytest.raises(TransferError, match="refused"):
        stage(receiver, snapshot, old)
    with pytest.raises(TransferError, match="group 1 is not open"):
        sender.send(snapshot, 1, BUCKET, LONG)
    with pytest.raises(TransferError, match="older"):
        sender.open(group_of(1), LONG)


def test_a_failed_group_is_condemned_and_the_next_one_works(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match="transfer group 1 rank 0"):
        sender.send(snapshot, 1, BUCKET, 0.5)  # nobody comes
    with pytest.raises(TransferError, match="failed; open a new one"):
        sender.open(group_of(1), LONG)
    group = sender.open(group_of(2), LONG)
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, group)
    assert staged.result() == snapshot.manifest.root
    sent.result()


def test_a_silent_sender_cannot_hold_a_receiver(ends):
    sender, (receiver, _) = ends
    group = sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match="within 0.5 s"):
        stage(receiver, make_snapshot(), group, timeout=0.5)


def test_a_mute_rendezvous_cannot_hold_a_receiver(ends):
    """torch's own store client would wait for ever here."""
    _, (receiver, _) = ends
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(TransferError, match="no end after"):
            stage(receiver, make_snapshot(), replace(group_of(1), rendezvous=address), timeout=0.3)
    _until(lambda: not _transfer_threads())


def test_a_newer_request_takes_the_place_of_one_that_waits(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    first = sender.open(group_of(1, 3), LONG)  # a third member never comes
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, first)
    _until(lambda: receiver._staging is not None and receiver._end is not None)
    second = sender.open(group_of(2), LONG)
    sent_again, [staged_again] = transfer(pool, sender, [receiver], snapshot, second)
    assert staged_again.result(timeout=10) == snapshot.manifest.root
    assert sent_again.result(timeout=10)
    for future in (sent, staged):
        with pytest.raises(TransferError, match="transfer group 1"):
            future.result(timeout=10)


def test_an_abort_ends_the_stage_of_its_version(pool, ends):
    sender, (receiver, _) = ends
    group = sender.open(group_of(1), LONG)
    staged = pool.submit(stage, receiver, make_snapshot(), group)
    _until(lambda: receiver._staging is not None and receiver._end is not None)
    receiver.discard(VersionId(0, 1))
    with pytest.raises(TransferError, match="given up"):
        staged.result(timeout=10)


def _transfer_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("transfer-")]


def _until(condition) -> None:
    deadline = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_frozen_receiver_cannot_hold_the_sender(ends, child):
    sender, _ = ends
    big = take_snapshot([("big", torch.ones(32 << 20, dtype=torch.uint8))])
    pid = child.apply_async(os.getpid).get(LONG)
    child.apply_async(_receive_once, (sender.open(group_of(1), LONG),))
    assert sender.send(make_snapshot(), 1, BUCKET, LONG)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TransferError, match="rank 0: could not broadcast within 1 s"):
            sender.send(big, 1, 1 << 20, 1.0)
        assert sender.open(group_of(2), LONG).group_id == 2
    finally:
        os.kill(pid, signal.SIGKILL)


def _receive_once(group):
    receiver = WeightReceiver(CPU)
    stage(receiver, make_snapshot(), group)
    time.sleep(LONG)


def test_nothing_listens_beyond_loopback_and_nothing_leaks_over_many_groups(pool, ends):
    sender, receivers = ends
    snapshot = make_snapshot()
    counts = []
    for group_id in range(1, 25):
        group = sender.open(group_of(group_id, 3), LONG)
        sent, stages = transfer(pool, sender, receivers, snapshot, group)
        assert {staged.result() for staged in stages} == {snapshot.manifest.root}
        sent.result()
        if group_id == 1:
            assert _listening() and all(a.startswith("127.0.0.1:") for a in _listening())
        if group_id >= 4:
            counts.append((len(os.listdir("/proc/self/fd")), threading.active_count(), _tasks()))
    assert max(counts) <= max(counts[:4])


def _tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def _listening() -> list[str]:
    """Addresses on which this process listens for TCP connections."""
    inodes = set()
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with open(f"/proc/self/net/{table}") as file:
            for line in list(file)[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    host, port = fields[1].split(":")
                    found.append(f"{_host(family, host)}:{int(port, 16)}")
    return found


def _host(family: int, text: str) -> str:
    words = [int(text[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(text), 8)]
    return socket.inet_ntop(family, b"".join(words))
