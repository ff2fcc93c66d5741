"""Transfer groups of an accelerator: what an error does, and one group at a time. No device needed.

The stand-ins say after an error what torch_npu's sources say that HCCL does.
"""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, pairwise
from typing import Any

import pytest

from services.weight_sync.members.member import Member
from services.weight_sync.staging.rounds import sources_of
from services.weight_sync.staging.transfer_plan import plan_stage
from tests.weight_sync.accelerators import StandIn, Wire, install
from tests.weight_sync.ends import (
    CONFIG,
    LONG,
    group_of,
    holds,
    limits_of,
    make_snapshot,
    make_values,
    shadow_of,
    snapshot_of,
    stage,
    until,
    version_of,
)
from tests.weight_sync.fakes import peer_of
from trimaran.errors import TransferError
from trimaran.run.network import LOOPBACK
from trimaran.types import (
    CollectiveSource,
    Delta,
    Offer,
    Replica,
    TransferGroup,
    VersionId,
)
from weights.receiving.receiver import WeightReceiver
from weights.sending.sender import WeightSender
from weights.transports.collective.endpoint import Collective
from weights.transports.collective.terms import Terms
from weights.transports.collective.turns import GroupTurn
from weights.transports.streams import Stream
from weights.version.manifest import list_digests

SNAPSHOT = make_snapshot()
LAYOUT = SNAPSHOT.layout
TERMS = Terms.of(SNAPSHOT.manifest.root, "", LAYOUT, 256)


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return install(monkeypatch)


def a_stream() -> Stream:
    return Stream(LAYOUT, SNAPSHOT.buffer.clone(), LAYOUT)


class Ends:
    """A sender and one receiver of each group, in threads as in their own processes."""

    def __init__(self, backend: str) -> None:
        self.device: Any = StandIn(backend)
        self.turn = GroupTurn()
        """The receivers'."""

    def open(self, number: int = 1) -> tuple[Collective, Collective]:
        sender = Collective.host(self.device, 0, LOOPBACK, group_of(number), LONG)
        return sender, Collective(self.device, 0, "127.0.0.1", sender.group, 1, self.turn)

    def transfer(
        self, ends: tuple[Collective, Collective], timeout: float = LONG
    ) -> list[str | None]:
        """What the sender and the receiver raised."""
        raised: list[str | None] = [None, None]

        def run(rank: int) -> None:
            try:
                ends[rank].broadcast(a_stream(), TERMS, timeout)
            except TransferError as error:
                raised[rank] = str(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        return raised


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("backend", "reason"),
    [("hccl", "HCCL reports a failed collective"), ("nccl", "NCCL error: remote process exited")],
)
def test_a_work_that_failed_condemns_its_group(wire, backend, reason, rank):
    wire.failing.add((rank, 2))  # the first one carries the terms
    both = Ends(backend)
    pair = both.open()
    raised = both.transfer(pair, timeout=1.0)
    assert reason in (raised[rank] or "")
    assert not pair[rank].healthy
    with pytest.raises(TransferError, match="closed; open a new group"):
        pair[rank].broadcast(a_stream(), TERMS, 1.0)
    for end in pair:
        end.close()
    wire.failing.clear()
    again = both.open(2)
    assert both.transfer(again) == [None, None]
    for end in again:
        end.close()


def test_an_error_of_our_groups_does_not_end_the_process(wire, monkeypatch):
    """And one of the trainer's own groups does, as it would without us."""
    monkeypatch.delenv("HCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
    for backend in ("hccl", "nccl"):
        both = Ends(backend)
        pair = both.open()
        assert both.transfer(pair) == [None, None]
        for end in pair:
            end.close()
    seen = [
        (made.get("HCCL_ASYNC_ERROR_HANDLING"), made.get("TORCH_NCCL_ASYNC_ERROR_HANDLING"))
        for made in wire.environments
    ]
    assert seen == [("2", "3")] * 2 + [(None, "2")] * 2
    assert "HCCL_ASYNC_ERROR_HANDLING" not in os.environ
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


def test_a_healthy_group_is_shut_down_and_a_condemned_one_dropped(wire):
    both = Ends("hccl")
    pair = both.open()
    assert both.transfer(pair) == [None, None]
    pair[1].close()
    assert _ending(wire, 1) == ["shutdown", "freed"]
    pair[0].give_up()
    pair[0].close()
    assert _ending(wire, 0) == ["freed"]  # abort_hccl_comm would keep Python's global lock


def _ending(wire: Wire, rank: int) -> list[str]:
    """What became of this rank's group after its last broadcast."""
    until(lambda: any("freed" in event for event in wire.events[rank]))
    events = [event.split()[0] for event in wire.events[rank]]
    return events[len(events) - events[::-1].index("broadcast") :]


def test_no_member_enters_a_collective_before_all_are_there(wire):
    """A member that is dead or frozen before a transfer costs a deadline, not a stuck device."""
    both = Ends("hccl")
    sender = Collective.host(both.device, 0, LOOPBACK, group_of(1, world_size=3), LONG)
    receiver = Collective(both.device, 0, "127.0.0.1", sender.group, 1, both.turn)
    raised = both.transfer((sender, receiver), timeout=0.5)
    assert "receiver 2 did not come" in (raised[0] or "")
    assert raised[1] and not wire.events
    sender.close()
    receiver.close()


def test_the_next_group_waits_until_torch_has_left_the_last_one(wire):
    both = Ends("hccl")
    wire.never_ending.add((1, 1))
    wire.may_end.clear()  # the communicator's end hangs, as it may while a broadcast is stuck
    first = both.open(1)
    assert both.transfer(first, timeout=0.5)[1]
    wire.never_ending.clear()
    second = both.open(2)
    raised = both.transfer(second, timeout=0.5)
    assert "torch has not left an earlier transfer group" in (raised[1] or "")
    assert not first[1].settled
    wire.may_end.set()
    until(lambda: first[1].settled)
    third = both.open(3)
    assert both.transfer(third) == [None, None]
    for end in (*first, *second, *third):
        end.close()


@contextmanager
def shards(num_senders: int, num_receivers: int):
    """Both sides, each sender's blocks, and the stand-in that they are on."""
    bounds = [round(part * 9 / num_senders) for part in range(num_senders + 1)]
    ranges = [((first, end),) for first, end in pairwise(bounds)]
    device: Any = StandIn("hccl")
    senders = [WeightSender(device, 0, CONFIG) for _ in range(num_senders)]
    receivers = [WeightReceiver(device, 0, CONFIG) for _ in range(num_receivers)]
    try:
        for end in (*senders, *receivers):
            end.start()
        yield senders, receivers, ranges, device
    finally:
        for end in (*senders, *receivers):
            end.close()


def test_a_receiver_is_in_one_group_at_a_time(wire):
    whole = make_snapshot()
    digests = dict(enumerate(list_digests(whole.manifest)))
    with shards(3, 4) as (senders, receivers, ranges, device):
        groups = [
            sender.open(TransferGroup(number, f"nonce-{number}", 5, ""), LONG)
            for number, sender in enumerate(senders, start=1)
        ]
        sources = [
            [CollectiveSource(own, group, rank) for own, group in zip(ranges, groups, strict=True)]
            for rank in range(1, 5)
        ]
        parts = [
            snapshot_of(make_values(), ranges=own, exchange=lambda _: digests) for own in ranges
        ]
        for step in (1, 2):  # the second version goes through the same groups
            with ThreadPoolExecutor(7) as threads:
                works = [
                    threads.submit(sender.send, part, group.group_id, own, "", limits_of())
                    for sender, part, group, own in zip(
                        *(senders, parts, groups, ranges), strict=True
                    )
                ]
                works += [
                    threads.submit(stage, receiver, whole, *own, step=step)
                    for receiver, own in zip(receivers, sources, strict=True)
                ]
                for work in works:
                    work.result(LONG)
            for receiver in receivers:
                assert holds(receiver, whole)
                receiver.keep(VersionId(0, step))
        for rank in range(1, 5):
            events = [event.split() for event in wire.events[rank]]
            used = [key for what, key in events if what == "broadcast"]
            assert [key.split("-")[1] for key, _ in groupby(used)] == ["1", "2", "3"] * 2
        # The memory that serves every version is locked for the device's copies once.
        buffers = [part.buffer for part in parts] + [
            shadow_of(receiver.held).buffer for receiver in receivers
        ]
        locked = [(buffer.data_ptr(), buffer.numel()) for buffer in buffers]
        assert sorted(device.locked) == sorted(locked)


@pytest.mark.parametrize("with_base", [0, 40])
def test_every_receiver_has_the_same_order_of_senders(with_base):
    """Else they would wait for each other in a circle."""
    whole = snapshot_of(make_values())
    held = version_of(whole, 1)
    members = [
        Member(Replica(f"r{n}", ""), peer_of(f"r{n}", ""), 1, held if n < with_base else None)
        for n in range(64)
    ]
    ranges = [((n, n + 1 + (n == 7)),) for n in range(8)]
    offers = []
    for n, own in enumerate(ranges):
        delta = Delta(held.root, (1,) + (0,) * (n == 7)) if with_base else None
        offers.append(Offer(peer_of(f"t{n}", ""), own, "", delta))
    plan = plan_stage(whole.manifest, offers, members, "auto", 2)
    seated = {seat.name for group in plan.groups for seat in group.seats}
    assert len(plan.groups) == 8 and len(seated) == (with_base or 64)
    # As the ledger numbers them: in whatever order the senders' groups were opened.
    numbers = [3, 1, 8, 5, 2, 7, 6, 4]
    groups = [TransferGroup(n, "nonce", len(seated) + 1, "") for n in numbers]
    orders = {
        tuple(source.group.group_id for source in found if isinstance(source, CollectiveSource))
        for name, found in sources_of(plan, groups).items()
        if name in seated
    }
    assert orders == {tuple(numbers)}
