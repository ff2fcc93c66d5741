"""A version is staged on all hosts of a replica, or on none."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from services.rollout.spread import SpreadReceiver
from tests.weight_sync.ends import (
    by_relay,
    from_memory,
    group_of,
    holds,
    in_group,
    limits_of,
    make_snapshot,
    make_values,
    snapshot_of,
    stage,
    started,
    take_from_memory,
)
from trimaran.errors import OutOfOrderError, TransferError, UnavailableError
from trimaran.types import PolicyVersion, RelaySource, Staged, Transport, VersionId
from weights.delta import delta_changes
from weights.memory.host_memory import MemoryReader
from weights.memory.shadow import open_shadow
from weights.receiving.receiver import WeightReceiver


class Follower:
    """A further host in this process; `fault` is raised in the place of a stage."""

    def __init__(self, name: str, receiver: WeightReceiver) -> None:
        self.name, self.receiver = name, receiver
        self.fault: Exception | None = None
        self.answer: Staged | None = None
        self.reported: list[str] = []
        self.deltas: list[bool] = []
        """Of each stage: whether it was asked for as one."""

    async def stage(
        self, version: PolicyVersion, manifest: Any, sources: Any, limits: Any, attempt: str
    ) -> tuple[Staged, str]:
        self.deltas.append(any(source.delta for source in sources))
        if self.fault:
            raise self.fault
        found = await asyncio.to_thread(
            self.receiver.stage, version, manifest, sources, limits, attempt
        )
        assert self.receiver.staged
        return self.answer or found, self.receiver.staged.shadow.path

    async def keep(self, version: VersionId) -> None:
        self.reported.append(f"keep {version}")
        self.receiver.keep(version)

    async def abort(self, version: VersionId, attempt: str) -> None:
        self.reported.append(f"abort {version}")
        self.receiver.discard(version, attempt)


@contextmanager
def hosts(snapshot: Any) -> Iterator[tuple[Any, Any, list[Follower]]]:
    """A sender that holds it, and a replica on three hosts."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with started(receivers=3) as ([sender], [own, *others]):
            followers: list[Any] = [Follower(f"follower-{n}", one) for n, one in enumerate(others)]
            sender.hold(snapshot)
            yield sender, SpreadReceiver(own, followers, loop), followers
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def test_every_host_gets_the_version_and_its_workers_find_it_there() -> None:
    snapshot = make_snapshot()
    with hosts(snapshot) as (_, receiver, followers):
        found = stage(receiver, snapshot, from_memory(snapshot), attempt="a")
        assert found.bytes_by_transport.keys() == {Transport.MEMORY}  # what came to the replica
        assert receiver.staged is not None
        shadow = receiver.staged.shadow
        assert len({shadow.path, *shadow.elsewhere}) == 3
        assert followers[1].receiver.staged
        followers[1].receiver.staged.shadow.buffer.zero_()  # to distinguish the hosts
        for host in range(3):
            there = dict(open_shadow(shadow.path, shadow.description(), MemoryReader(), host))
            equal = [torch.equal(there[name], value) for name, value in shadow.tensors()]
            assert all(equal) is (host < 2)
        receiver.keep(VersionId(0, 1))
        assert receiver.staged is None
        assert all(one.reported == ["keep 0.1"] and one.receiver.held for one in followers)


def test_memory_of_a_version_that_did_not_load_is_free_before_the_next_one_needs_it() -> None:
    snapshot = make_snapshot()
    with hosts(snapshot) as (_, receiver, followers):
        stage(receiver, snapshot, from_memory(snapshot), attempt="a")
        assert receiver.staged is not None
        former = weakref.ref(receiver.staged.shadow.memory)
        pull, is_free = followers[0].stage, list[bool]()

        async def look(*args: Any) -> tuple[Staged, str]:
            is_free.append(former() is None)
            return await pull(*args)

        followers[0].stage = look  # type: ignore[method-assign]
        stage(receiver, snapshot, from_memory(snapshot), attempt="b")
        assert is_free == [True]


def test_where_one_host_fails_nothing_is_staged_on_any() -> None:
    first, second = make_snapshot(), make_snapshot(1)
    with hosts(first) as (sender, receiver, followers):
        stage(receiver, first, from_memory(first), attempt="a")
        receiver.keep(VersionId(0, 1))
        followers[1].fault = UnavailableError("gone")
        sender.hold(None)
        sender.hold(second)
        with pytest.raises(TransferError, match="follower-1: gone"):
            stage(receiver, second, from_memory(second), step=2, attempt="b")
        assert receiver.staged is None
        assert followers[0].receiver.staged is None
        assert followers[0].reported[-1] == "abort 0.2"
        followers[1].fault = None
        stage(receiver, second, from_memory(second), step=2, attempt="c")
        assert receiver.staged is not None


def test_a_host_that_says_it_has_something_else_has_nothing() -> None:
    snapshot, other = make_snapshot(), make_snapshot(1)
    with hosts(snapshot) as (_, receiver, followers):
        followers[1].answer = Staged(other.manifest.root, 9, {})
        with pytest.raises(TransferError, match="follower-1: staged 9 blocks of"):
            stage(receiver, snapshot, from_memory(snapshot), attempt="a")
        assert receiver.staged is None


def test_a_version_that_was_aborted_meanwhile_is_not_staged() -> None:
    snapshot = make_snapshot()
    with hosts(snapshot) as (_, receiver, followers):
        stage(receiver, snapshot, from_memory(snapshot), attempt="a")
        receiver.discard(VersionId(0, 1), "a")
        assert receiver.staged is None
        assert all(one.receiver.staged is None for one in followers)


def test_a_delta_travels_on_as_one_and_whole_to_a_host_that_lacks_its_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delta_changes, "MAX_SHARE", 1.0)
    values = make_values()
    first = snapshot_of(values)
    with hosts(first) as (sender, receiver, followers):
        stage(receiver, first, from_memory(first), attempt="a")
        receiver._own.keep(VersionId(0, 1))  # follower-1 does not hear of it
        asyncio.run(followers[0].keep(VersionId(0, 1)))
        sender.hold(None)
        values["proj"][1, 3] += 1.0
        second = snapshot_of(values, reuse=first, keep_delta=True)
        sender.hold(second)
        assert second.delta
        delta = second.delta.describe(second.layout.ranges)
        group = sender.open(group_of(1), 30.0)
        asked = second, 1, second.layout.ranges, first.manifest.root, limits_of()
        sent = threading.Thread(target=sender.send, args=asked)
        sent.start()
        source = in_group(second, group, delta=delta)
        stage(receiver, second, source, step=2, attempt="b")
        sent.join()
        assert followers[0].deltas == [False, True]
        assert followers[1].deltas == [False, True, False]
        assert receiver.staged
        assert receiver.staged.shadow.changes is None, "a worker there could not read them"
        for one in followers:
            assert one.receiver.staged
            assert torch.equal(one.receiver.staged.shadow.buffer, second.buffer)


def test_a_delta_that_a_neighbour_has_applied_travels_on_whole() -> None:
    """The first host reads the version in the memory of another replica, and so has no pieces to give."""
    values = make_values()
    first = snapshot_of(values)
    with hosts(first) as (sender, receiver, followers), started() as (_, [owner]):
        take_from_memory(owner, first)
        for one in (receiver._own, *(follower.receiver for follower in followers)):
            take_from_memory(one, first)
        sender.hold(None)
        values["proj"][1, 3] += 1.0
        second = snapshot_of(values, reuse=first, keep_delta=True)
        sender.hold(second)
        assert second.delta
        delta = second.delta.describe(second.layout.ranges)
        stage(owner, second, by_relay(second, sender.peer, delta=delta), step=2)
        assert owner.staged
        path = owner.staged.shadow.path
        source = RelaySource(second.layout.ranges, (owner.peer,), delta, path)
        assert stage(receiver, second, source, step=2, attempt="b").path == ""
        for follower in followers:
            assert holds(follower.receiver, second)


def test_without_a_delta_a_refusal_is_not_asked_twice() -> None:
    snapshot = make_snapshot()
    with hosts(snapshot) as (_, receiver, followers):
        followers[0].fault = OutOfOrderError("another meeting")
        with pytest.raises(TransferError, match="follower-0: another meeting"):
            stage(receiver, snapshot, from_memory(snapshot), attempt="a")
        assert followers[0].deltas == [False]
