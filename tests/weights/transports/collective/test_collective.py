"""Sender and receivers over real gloo, in threads and, where one freezes, in processes."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import psutil
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
)
from trimaran.errors import TransferError
from trimaran.run.network import Host
from trimaran.types import Transport, VersionId
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.transports.collective import endpoint as collective
from weights.transports.collective import gloo_work
from weights.transports.collective.terms import Terms
from weights.transports.streams import Stream

pytestmark = pytest.mark.e2e  # real processes, most of which are killed or wait


def transfer(pool, sender, receivers, snapshot, group, blocks=ALL, bucket_bytes=BUCKET):
    stages = []
    for rank, receiver in enumerate(receivers, start=1):
        source = replace(in_group(snapshot, group, rank), blocks=blocks)
        stages.append(pool.submit(stage, receiver, snapshot, source, bucket_bytes=bucket_bytes))
    limits = limits_of(bucket_bytes=bucket_bytes)
    return pool.submit(sender.send, snapshot, group.group_id, blocks, "", limits), stages


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


@pytest.fixture
def ends(pool):  # which outlives them
    with started(receivers=2) as ([sender], receivers):
        yield sender, receivers


@pytest.fixture
def waiting(pool, ends):
    """A stage and a send in a group of which a third member never comes."""
    sender, (receiver, _) = ends
    group = sender.open(group_of(1, 3), LONG)
    sent, [staged] = transfer(pool, sender, [receiver], make_snapshot(), group)
    until(lambda: threads_named("transfer-1-rank-1"))
    return sent, staged


@pytest.fixture(scope="module")
def child():
    """Another process with torch loaded; one that was killed is replaced."""
    with multiprocessing.get_context("spawn").Pool(1) as processes:
        processes.apply_async(_process_id).get(LONG)
        yield processes


def _process_id() -> int:
    """To call it loads this module, and torch."""
    return os.getpid()


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
    assert sender.open(group_of(1, 3), LONG) == group
    sent, stages = transfer(pool, sender, [receiver, other], snapshot, group)
    assert sent.result() == snapshot.buffer.numel()
    with pytest.raises(TransferError, match=r"transfer group 1: block 0 \(embed 0:5\) arrived"):
        stages[0].result()
    assert receiver.staged is None
    assert stages[1].result().root == snapshot.manifest.root
    assert holds(other, snapshot)


@pytest.mark.parametrize(
    ("seed", "bucket_bytes", "ranges"),
    [
        pytest.param(0, 4 * BUCKET, ALL, id="longer buckets"),
        pytest.param(0, BUCKET, ((0, 4),), id="more blocks"),
        pytest.param(2, BUCKET, ALL, id="another version"),
    ],
)
def test_a_transfer_of_another_size_is_refused_and_ends_no_process(
    ends, child, seed, bucket_bytes, ranges
):
    """gloo would end the process: "op.preamble.length <= op.nbytes", thrown where nothing catches."""
    sender, _ = ends
    group = sender.open(group_of(1), LONG)
    reported = child.apply_async(_receive_and_say, (group, ranges))
    with suppress(TransferError):  # the receiver may have left already
        sender.send(make_snapshot(seed), 1, ALL, "", limits_of(20.0, bucket_bytes))
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


def test_a_newer_request_takes_the_place_of_one_that_waits(pool, ends, waiting):
    (sender, (receiver, _)), (sent, staged), snapshot = ends, waiting, make_snapshot()
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


def test_an_abort_ends_the_stage_of_its_version(ends, waiting):
    (_, (receiver, _)), (_, staged) = ends, waiting
    receiver.discard(VersionId(0, 1))
    with pytest.raises(TransferError, match="discarded while it was staged"):
        staged.result(timeout=10)


def test_a_close_ends_a_stage_and_a_send(ends, waiting):
    sender, (receiver, _) = ends
    receiver.close()
    sender.close()
    for future in waiting:
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
    assert set(listening) == {"127.0.0.1"}
    # The last of a group's threads may end a moment after it; a leak would stay.
    for kind in range(2):
        assert min(late[kind] for late in counts[-50:]) <= max(early[kind] for early in counts[:20])
    # Far less than one snapshot a group; the allocator itself wanders by some MiB.
    assert sizes[-1] - sizes[20] < 16 << 20


def _open_groups(number):
    """(descriptors, threads) and resident bytes after each group, and who listens at the end."""
    snapshot, process = big_snapshot(1 << 20), psutil.Process()
    counts, sizes = [], []
    with started() as ([sender], [receiver]), ThreadPoolExecutor(2) as pool:
        for group_id in range(1, number + 1):
            group = sender.open(group_of(group_id), LONG)
            how = {"blocks": blocks_of(snapshot), "bucket_bytes": 1 << 18}
            sent, [staged] = transfer(pool, sender, [receiver], snapshot, group, **how)
            assert staged.result().root == snapshot.manifest.root
            sent.result()
            receiver.keep(VersionId(0, 1))
            if group_id >= 20:
                counts.append((process.num_fds(), process.num_threads()))
                sizes.append(process.memory_info().rss)
        sockets = process.net_connections("tcp")
        return counts, sizes, [one.laddr.ip for one in sockets if one.status == "LISTEN"]


def test_an_address_of_another_machine_is_refused():
    sender = WeightSender(CPU, 0, CONFIG, Host("192.0.2.99", "eth7"))
    with pytest.raises(TransferError, match=r"cannot listen on 192\.0\.2\.99"):
        sender.start()
    with pytest.raises(TransferError, match=r"cannot listen on 192\.0\.2\.99"):
        sender.open(group_of(1), LONG)
    sender.close()


class EndlessGroup:
    """Of a gloo that does not keep its own deadline."""

    def broadcast(self, tensors, options):
        never = SimpleNamespace(add_done_callback=lambda callback: None)
        return SimpleNamespace(get_future=lambda: never, is_completed=lambda: True)


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
    assert works


LEAVES = """
import sys
from datetime import timedelta
import torch
from torch.distributed import BroadcastOptions, HashStore, ProcessGroupGloo
from concurrent.futures import ThreadPoolExecutor
from weights.transports.collective.gloo_work import GlooWork

def join(rank):
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=10)
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return ProcessGroupGloo(store, rank, 2, options)

store = HashStore()
with ThreadPoolExecutor(2) as threads:
    _, receiver = threads.map(join, (0, 1))
options = BroadcastOptions()
options.rootRank, options.rootTensor, options.timeout = 0, 0, timedelta(seconds=1)
kept = GlooWork(receiver.broadcast([torch.zeros(1)], options))
sys.exit(7)
"""


def test_a_process_that_ends_beside_a_broadcast_ends_with_its_own_code():
    """A call from gloo's thread, once the interpreter goes down, would abort it."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVES], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 7, done.stderr


def test_no_broadcast_is_begun_any_more_once_a_process_ends():
    """Its end would come behind the wait for those that are under way."""
    under_way = gloo_work._UnderWay()
    under_way.leave()
    with pytest.raises(RuntimeError, match="this process is ending"):
        under_way.add(object.__new__(gloo_work.GlooWork))
