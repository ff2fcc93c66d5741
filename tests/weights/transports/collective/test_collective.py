"""Sender and receivers over real gloo, in threads and, where one freezes, in processes."""

import multiprocessing
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from tests.weight_sync.ends import (
    ALL,
    BUCKET,
    CONFIG,
    CPU,
    LONG,
    big_snapshot,
    blocks_of,
    group_of,
    holds,
    in_group,
    limits_of,
    make_snapshot,
    stage,
    started,
    take_from_memory,
    threads_named,
    until,
    version_of,
)
from trimaran.errors import TransferError
from trimaran.run.network import Host
from trimaran.types import Transport, VersionId
from weights.receiving.receiver import WeightReceiver
from weights.transports.collective import endpoint as collective
from weights.transports.collective.terms import Terms
from weights.transports.streams import Stream

pytestmark = pytest.mark.e2e  # real processes, most of which are killed or wait


def transfer(
    pool, sender, receivers, snapshot, group, timeout=LONG, blocks=ALL, bucket_bytes=BUCKET
):
    stages = [
        pool.submit(
            stage,
            receiver,
            snapshot,
            replace(in_group(snapshot, group, rank), blocks=blocks),
            timeout=timeout,
            bucket_bytes=bucket_bytes,
        )
        for rank, receiver in enumerate(receivers, start=1)
    ]
    sent = pool.submit(
        sender.send, snapshot, group.group_id, blocks, "", limits_of(timeout, bucket_bytes)
    )
    return sent, stages


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def ends():
    with started(receivers=2) as ([sender], receivers):
        yield sender, receivers


@pytest.fixture(scope="module")
def child():
    """Another process with torch loaded; one that was killed is replaced."""
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        processes.apply_async(_process_id).get(LONG)
        yield processes


def _process_id() -> int:
    """To call it loads this module, and torch."""
    return os.getpid()


def test_two_receivers_take_two_versions_through_one_group(pool, ends):
    sender, receivers = ends
    group = sender.open(group_of(1, 3), LONG)
    assert sender.open(group_of(1, 3), LONG) == group
    for seed in (1, 2):
        snapshot = make_snapshot(seed)
        sent, stages = transfer(pool, sender, receivers, snapshot, group)
        assert sent.result() == snapshot.buffer.numel()
        for receiver, staged in zip(receivers, stages, strict=True):
            assert staged.result().root == snapshot.manifest.root
            assert staged.result().num_blocks == snapshot.manifest.num_blocks
            assert receiver.staged.version == version_of(snapshot)
            assert holds(receiver, snapshot)
            receiver.discard(VersionId(0, 1))
            assert receiver.staged is None


def test_bytes_that_differ_from_the_manifest_are_not_staged(pool, ends):
    """The other receiver of the group loses nothing by it."""
    sender, (receiver, other) = ends
    snapshot = make_snapshot()
    carrier = receiver._carriers[Transport.COLLECTIVE]
    carry = carrier.carry

    def flip_a_bit(job):
        def land(number):
            job.buffer[3] ^= 64 if number == 0 else 0
            job.land(number)

        carry(replace(job, land=land))

    carrier.carry = flip_a_bit
    group = sender.open(group_of(1, 3), LONG)
    sent, stages = transfer(pool, sender, [receiver, other], snapshot, group)
    assert sent.result()
    with pytest.raises(TransferError, match=r"transfer group 1: block 0 \(embed 0:5\) arrived"):
        stages[0].result()
    assert receiver.staged is None
    assert stages[1].result().root == snapshot.manifest.root
    assert holds(other, snapshot)


DIFFERENT = {
    "longer buckets": ({"bucket_bytes": 4 * BUCKET}, {}),
    "shorter buckets": ({"bucket_bytes": BUCKET // 4}, {}),
    "more blocks": ({}, {"ranges": ((0, 4),)}),
    "another version": ({"seed": 2}, {}),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_a_transfer_of_another_size_is_refused_and_ends_no_process(ends, child, what):
    """gloo would end the process: "op.preamble.length <= op.nbytes", thrown where nothing catches."""
    (sending, receiving), (sender, _) = DIFFERENT[what], ends
    group = sender.open(group_of(1), LONG)
    reported = child.apply_async(_receive_and_say, (group, receiving.get("ranges", ALL)))
    snapshot = make_snapshot(sending.get("seed", 0))
    with suppress(TransferError):  # the receiver may have left already
        sender.send(snapshot, 1, ALL, "", limits_of(20.0, sending.get("bucket_bytes", BUCKET)))
    said, pid = reported.get(LONG)
    assert "the sender offers" in said and "this receiver expects" in said
    assert child.apply_async(os.getpid).get(LONG) == pid  # the same process


def _receive_and_say(group, ranges):
    with started(senders=0) as (_, [receiver]):
        snapshot = make_snapshot()
        receiver._wanted = ranges
        source = replace(in_group(snapshot, group), blocks=ranges)
        try:
            stage(receiver, snapshot, source, timeout=20.0)
        except TransferError as error:
            return str(error), os.getpid()
    return "staged", os.getpid()


def test_a_sender_refuses_blocks_that_it_does_not_hold(ends):
    sender, _ = ends
    sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match=r"blocks \(\(9, 12\),\) are not in this rank's"):
        sender.send(make_snapshot(), 1, ((5, 12),), "", limits_of())


def test_no_process_joins_with_another_nonce(pool, ends):
    sender, (receiver, _) = ends
    group = replace(sender.open(group_of(1), LONG), nonce="stale")
    sent, [staged] = transfer(pool, sender, [receiver], make_snapshot(), group, timeout=1.0)
    for future in (sent, staged):
        with pytest.raises(TransferError):
            future.result()


@pytest.mark.parametrize("rank", [0, 2])
def test_a_receiver_has_a_rank_of_its_own(ends, rank):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match=f"rank {rank} cannot receive in a group of 2"):
        stage(receiver, snapshot, in_group(snapshot, group, rank))


def test_a_closed_group_answers_at_once(ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    with pytest.raises(TransferError, match="group 1 has no rendezvous"):
        stage(receiver, snapshot, in_group(snapshot, group_of(1)))
    old = sender.open(group_of(1), LONG)
    sender.open(group_of(2), LONG)
    with pytest.raises(TransferError, match="refused"):
        stage(receiver, snapshot, in_group(snapshot, old))
    with pytest.raises(TransferError, match="group 1 is not open"):
        sender.send(snapshot, 1, ALL, "", limits_of())
    with pytest.raises(TransferError, match="older"):
        sender.open(group_of(1), LONG)


def test_a_failed_group_is_condemned_and_the_next_one_works(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match="transfer group 1 rank 0"):
        sender.send(snapshot, 1, ALL, "", limits_of(0.5))  # nothing comes
    with pytest.raises(TransferError, match="failed; open a new one"):
        sender.open(group_of(1), LONG)
    group = sender.open(group_of(2), LONG)
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, group)
    assert staged.result().root == snapshot.manifest.root
    sent.result()


def test_a_silent_sender_cannot_hold_a_receiver(ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = sender.open(group_of(1), LONG)
    with pytest.raises(TransferError, match=r"transfer group 1 rank 1: could not broadcast"):
        stage(receiver, snapshot, in_group(snapshot, group), timeout=0.5)


def test_a_mute_rendezvous_cannot_hold_a_receiver(ends):
    """torch's own store client would wait for ever here."""
    _, (receiver, _) = ends
    snapshot = make_snapshot()
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        group = replace(group_of(1), rendezvous=address)
        with pytest.raises(TransferError, match=r"within 0\.\d+ s: timed out"):
            stage(receiver, snapshot, in_group(snapshot, group), timeout=0.3)
    until(lambda: not threads_named("transfer-"))


def test_a_newer_request_takes_the_place_of_one_that_waits(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    first = sender.open(group_of(1, 3), LONG)  # a third member never comes
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, first)
    until(lambda: threads_named("transfer-1-rank-1"))
    second = sender.open(group_of(2), LONG)
    sent_again, [staged_again] = transfer(pool, sender, [receiver], snapshot, second)
    assert staged_again.result(timeout=10).root == snapshot.manifest.root
    assert sent_again.result(timeout=10)
    with pytest.raises(TransferError, match="transfer group 1"):
        sent.result(timeout=10)
    # Whichever it saw first: its own newer request, or the sender's end of the group.
    with pytest.raises(TransferError, match="given up by its caller|transfer group 1"):
        staged.result(timeout=10)


def test_memory_that_torch_may_still_write_to_is_not_used_again(pool, ends, monkeypatch):
    """A receive that was given up goes on inside torch until its own deadline."""
    sender, (receiver, _) = ends
    old, new = make_snapshot(1), make_snapshot(2)
    group = sender.open(group_of(1), LONG)
    sent, [staged] = transfer(pool, sender, [receiver], old, group)
    sent.result()
    staged.result()
    receiver.keep(VersionId(0, 1))
    address = receiver.held.shadow.buffer.data_ptr()
    [end] = receiver._carriers[Transport.COLLECTIVE]._ends.values()
    start, works = end._start, []
    monkeypatch.setattr(end, "_start", lambda *args: works.append(start(*args)) or works[-1])
    staged = pool.submit(stage, receiver, new, in_group(new, group), step=2, timeout=LONG)
    until(lambda: works)  # before, torch would not begin
    receiver.discard(VersionId(0, 2))
    with pytest.raises(TransferError, match=r"0\.2 was discarded"):
        staged.result(timeout=10)
    assert not end.settled
    take_from_memory(receiver, new, step=2)
    assert receiver.held.shadow.buffer.data_ptr() != address
    sender.close()  # which ends what torch waits for
    until(lambda: end.settled)


def test_an_abort_ends_the_stage_of_its_version(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = sender.open(group_of(1), LONG)
    staged = pool.submit(stage, receiver, snapshot, in_group(snapshot, group))
    until(lambda: threads_named("transfer-1-rank-1"))
    receiver.discard(VersionId(0, 1))
    with pytest.raises(TransferError, match="discarded while it was staged"):
        staged.result(timeout=10)


def test_a_close_ends_a_stage_and_a_send(pool, ends):
    sender, (receiver, _) = ends
    snapshot = make_snapshot()
    group = sender.open(group_of(1, 3), LONG)
    sent, [staged] = transfer(pool, sender, [receiver], snapshot, group)
    until(lambda: threads_named("transfer-1-rank-1"))
    receiver.close()
    sender.close()
    for future in (sent, staged):
        with pytest.raises(TransferError):
            future.result(timeout=10)


def test_a_frozen_receiver_cannot_hold_the_sender(ends, child):
    sender, _ = ends
    big = big_snapshot(32 << 20)
    small = make_snapshot()
    pid = child.apply_async(os.getpid).get(LONG)
    group = sender.open(group_of(1), LONG)
    child.apply_async(_receive_once, (small.manifest, in_group(small, group)))
    assert sender.send(small, 1, ALL, "", limits_of())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TransferError, match="rank 0: could not broadcast within 1"):
            sender.send(big, 1, blocks_of(big), "", limits_of(1.0, 1 << 20))
        assert sender.open(group_of(2), LONG).group_id == 2
    finally:
        os.kill(pid, signal.SIGKILL)


def _receive_once(manifest, source):
    receiver = WeightReceiver(CPU, 0, CONFIG)
    snapshot = make_snapshot()
    assert snapshot.manifest == manifest
    stage(receiver, snapshot, source)
    time.sleep(LONG)


def test_nothing_leaks_over_hundreds_of_groups(monkeypatch):
    """In a process of its own, where nothing else comes and goes."""
    # torch asks the name server about every address that it connects to; not to wait for it.
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        counts, sizes, listening = processes.apply(_open_groups, (200,))
    assert listening and all(address.startswith("127.0.0.1:") for address in listening)
    # The last of a group's threads may end a moment after it; a leak would stay.
    for early, late in zip(
        zip(*counts[:20], strict=True), zip(*counts[-50:], strict=True), strict=True
    ):
        assert min(late) <= max(early)
    # Far less than one snapshot a group; the allocator itself wanders by some MiB.
    assert sizes[-1] - sizes[20] < 16 << 20


def _open_groups(number):
    """(descriptors, threads) and resident bytes after each group, and who listens at the end."""
    snapshot = big_snapshot(1 << 20)
    counts, sizes = [], []
    with started() as ([sender], [receiver]), ThreadPoolExecutor(2) as pool:
        for group_id in range(1, number + 1):
            group = sender.open(group_of(group_id), LONG)
            sent, [staged] = transfer(
                pool,
                sender,
                [receiver],
                snapshot,
                group,
                blocks=blocks_of(snapshot),
                bucket_bytes=1 << 18,
            )
            assert staged.result().root == snapshot.manifest.root
            sent.result()
            receiver.keep(VersionId(0, 1))
            if group_id >= 20:
                counts.append((_open_files(), len(os.listdir("/proc/self/task"))))
                sizes.append(_resident_bytes())
        return counts, sizes, _listening()


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


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


def test_an_address_of_another_machine_is_refused():
    from weights.sending.sender import WeightSender

    sender = WeightSender(CPU, 0, CONFIG, Host("192.0.2.99", "eth7"))
    with pytest.raises(TransferError, match=r"cannot listen on 192\.0\.2\.99"):
        sender.start()
    with pytest.raises(TransferError, match=r"cannot listen on 192\.0\.2\.99"):
        sender.open(group_of(1), LONG)
    sender.close()


class EndlessWork:
    """Of a gloo that does not keep its own deadline."""

    def is_completed(self):
        return False


class EndlessGroup:
    def __init__(self):
        self.works = []

    def broadcast(self, tensors, options):
        self.works.append(EndlessWork())
        return self.works[-1]


def test_work_that_gloo_never_ends_holds_neither_the_caller_nor_its_thread():
    snapshot, group = make_snapshot(), EndlessGroup()
    end = collective.Collective(CPU, 0, "127.0.0.1", group_of(1, 2), 0, grace=0.1, drain=0.1)
    end._process_group = group
    stream = Stream(snapshot.layout, snapshot.buffer, snapshot.layout)
    terms = Terms.of(snapshot.manifest.root, "", snapshot.layout, BUCKET)
    with pytest.raises(TransferError, match="could not broadcast within 0.1 s"):
        end.broadcast(stream, terms, timeout=0.1)
    until(lambda: not end._thread.alive)
    assert not end.settled  # what it may still write to must not be used again
    [works] = [works for kept, works in collective._ABANDONED if kept is group]
    assert set(works) == set(group.works)
