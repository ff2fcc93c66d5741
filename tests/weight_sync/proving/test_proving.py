import asyncio
import math
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.weight_sync.members.member import Member, State
from services.weight_sync.members.members import Members
from services.weight_sync.proving import proving
from services.weight_sync.proving.proving import ReadBackProver
from services.weight_sync.proving.windows import find_wrong, sample_blocks
from services.weight_sync.tasks import cancel
from tests.controller.virtual_time import now, run_virtually
from tests.weight_sync.fakes import NUM_BLOCKS, World, manifest_of, version_of
from tests.weight_sync.test_coordinator import (
    join,
    joined,
    names,
    publish,
    publish_all,
    running,
    until,
)
from trimaran.config import WeightSyncSection
from trimaran.errors import InputError
from trimaran.types import Proof, ProofLevel, Ranges, VersionId
from weights.version.layout import count, numbers_of
from weights.version.manifest import list_blocks, list_digests

MANIFEST = manifest_of(1)
BLOCKS = list_blocks(MANIFEST.tensors)


@given(st.integers(0, 5000), st.floats(0.001, 1), st.integers(0, 10**6))
def test_samples_in_rotation_cover_every_block_once(num_blocks, share, first):
    num_turns = math.ceil(1 / share)
    seen = [
        number
        for turn in range(first, first + num_turns)
        for number in numbers_of(sample_blocks(num_blocks, share, turn))
    ]
    assert sorted(seen) == list(range(num_blocks))


def test_a_fault_names_tensor_and_block():
    digests = list_digests(MANIFEST)
    assert find_wrong(MANIFEST, ((0, 5),), digests) == ((), "")
    assert find_wrong(MANIFEST, ((1, 2), (4, 5)), [digests[1], digests[4]]) == ((), "")
    wrong = [*digests[:2], "f" * 32, *digests[3:]]
    numbers, fault = find_wrong(MANIFEST, ((0, 5),), wrong)
    assert numbers == (2,)
    assert fault.startswith(f"w block 2 (4..6 of axis 0): loaded {'f' * 32} instead of")
    numbers, fault = find_wrong(MANIFEST, ((0, 5),), digests[:4])
    assert numbers == (0, 1, 2, 3, 4)
    assert "4 digests were read back for 5 blocks" in fault


def proof(replica: str, step: int, num_loaded: int, fault: str = "") -> Proof:
    root = manifest_of(step).root
    return Proof(VersionId(0, step), replica, root, NUM_BLOCKS, num_loaded, fault)


async def test_a_joiner_with_a_wrong_block_is_never_routable(world, tmp_path):
    async with joined(world, tmp_path, "a") as coordinator:
        await join(coordinator, world, "b", proof="wrong")
        await until(lambda: world.events.count("b commits 0.1") >= 2)  # loaded once more
        assert names(coordinator) == ["a"]
        assert "w block 2" in coordinator.routing().unroutable["b"]
        of_a, of_b, *_ = await coordinator.list_proofs([VersionId(0, 1), VersionId(0, 9)])
        assert of_a == proof("a", 1, NUM_BLOCKS)
        assert "w block 2" in of_b.fault


def sampling(share: float) -> WeightSyncSection:
    return WeightSyncSection(sample_share=share, join_timeout=10)


async def test_every_other_commit_is_sampled_in_rotation(world, tmp_path):
    async with joined(world, tmp_path, "a", config=sampling(0.5)) as coordinator:
        world.events.clear()
        metrics = {}
        for step in range(2, 8):
            _, metrics = await publish_all(coordinator, world, step)
            await until(lambda: len(coordinator_reads(world)) == step // 2)  # noqa: B023
            await asyncio.sleep(0.01)
        assert metrics["weight_sync/proof/share"] == 3 / 5  # of 0.6, which 0.7 replaces
        assert "weight_sync/proof/seconds" in metrics
    assert coordinator_reads(world) == [
        "a reads back 2..4",
        "a reads back 0..1",
        "a reads back 2..4",
    ]


BLOCK_BYTES = 8
"""Of the fakes' manifest: a portion for each block."""


def by_block(monkeypatch) -> None:
    monkeypatch.setattr(proving, "SAMPLE_PORTION_BYTES", BLOCK_BYTES)


async def publish_in_haste(coordinator, world, last: int, seconds: float) -> None:
    """Each version as soon as the one before is live; a read-back of one block takes `seconds`."""

    async def slowly(name, version):
        if version.step > 1:
            await asyncio.sleep(seconds)

    world.hooks["read back"] = slowly
    for step in range(2, last + 1):
        await publish_all(coordinator, world, step)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(list(ProofLevel)),
    st.floats(0.3, 1),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=4),
)
def test_every_block_comes_round_whatever_the_pace_of_the_commits(
    monkeypatch, level, share, schedule
):
    """`schedule`: seconds from commit to commit, and seconds of a portion's read-back, in turn. Without
    the wait for a first portion a commit every second would let no read-back of 1.5 s end."""

    async def scenario() -> None:
        ends = Ends(level, share)
        by_block(monkeypatch)
        turns = math.ceil(1 / share)
        num_commits = 6 * (NUM_BLOCKS + turns)  # a portion may need three commits: 1 + 2 + 4 s
        for number in range(num_commits):
            between, ends.seconds = schedule[number % len(schedule)]
            await ends.commit()
            await asyncio.sleep(between)
        await ends.prover.finish_sample()
        assert ends.seen == set(range(NUM_BLOCKS))
        per_version = ends.by_version.values()
        if level is ProofLevel.LOADED:
            assert all(len(blocks) == NUM_BLOCKS for blocks in per_version)
        if level is ProofLevel.SAMPLED:
            assert all(per_version)

    run_virtually(scenario())


class Ends:
    """A prover between a ledger and a replica of no process; all that it may wait for is virtual."""

    def __init__(self, level: ProofLevel, share: float, state: State = State.PROVEN) -> None:
        self.step, self.seconds = 1, 0.0
        self.num_read = 0
        self.seen: set[int] = set()
        self.by_version: dict[int, set[int]] = {}
        self.live, self.manifest = version_of(1), MANIFEST
        self.proofs: dict[str, Proof] = {}
        self.read_back: dict[str, Ranges] = {}
        replica, peer = World().add("a")
        self.members = Members()
        self.members.register(replica, peer, 0.0)
        self.members.tell(self.a, lambda a: replace(a, state=state))
        config = WeightSyncSection(sample_share=share)
        ours: Any = self
        self.prover = ReadBackProver(config, ours, ours, level)

    @property
    def a(self) -> Member:
        return self.members.get("a")

    def load(self) -> None:
        self.members.tell(self.a, lambda a: a.load(self.live, "a"))

    def is_proven(self) -> bool:
        return self.a.state is State.PROVEN

    async def commit(self) -> None:
        await self.prover.finish_sample()
        self.step += 1
        self.live, self.manifest = version_of(self.step), manifest_of(self.step)
        self.proofs, self.read_back = {"a": proof("a", self.step, 0)}, {}
        self.load()
        self.by_version[self.step] = set()
        self.prover.start_sample()

    async def join(self) -> None:
        self.load()
        self.by_version.setdefault(self.step, set())
        await self.prover.prove_joiner(self.a, self.live, self.manifest)

    @asynccontextmanager
    async def connected(self, members):
        yield dict.fromkeys(members, FakeReader(self))

    async def save_proofs(self, proofs, right) -> None:
        for one in proofs:
            self.proofs[one.replica], self.read_back[one.replica] = one, right
            assert one.num_loaded == count(right)
        self.seen |= set(numbers_of(right))
        self.by_version[self.step] |= set(numbers_of(right))

    async def admit(self, member, live, num_blocks) -> None:
        self.members.tell(member, lambda m: m.prove(live, num_blocks, now()))

    async def exclude(self, failed) -> None:
        raise AssertionError(failed)


class FakeReader:
    def __init__(self, ends: Ends) -> None:
        self.ends, self.step = ends, ends.step

    async def read_back(self, version, blocks, timeout) -> tuple[str, ...]:
        await asyncio.sleep(self.ends.seconds)
        digests = list_digests(manifest_of(self.step))  # as it was asked for
        self.ends.num_read += count(blocks)
        return tuple(digests[number] for number in numbers_of(blocks))


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(list(ProofLevel)),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=4),
)
def test_a_joiner_is_read_on_across_versions_until_it_is_through(monkeypatch, level, schedule):
    """`schedule`: as above. Each publication lets it get one portion further, after at most three that
    wait in vain; at `loaded` it waits for all of them."""

    async def scenario() -> None:
        ends = Ends(level, share=1.0, state=State.JOINING)
        by_block(monkeypatch)
        num_commits = 0
        while not ends.is_proven():
            between, ends.seconds = schedule[num_commits % len(schedule)]
            joining = asyncio.create_task(ends.join())
            await asyncio.sleep(between)
            await ends.prover.let_join(tuple(ends.members))
            await cancel([joining])
            if not ends.is_proven():
                await ends.commit()
            num_commits += 1
        assert num_commits <= (1 if level is ProofLevel.LOADED else 3 * NUM_BLOCKS)
        assert ends.seen == set(range(NUM_BLOCKS))
        assert ends.num_read == NUM_BLOCKS  # none twice

    run_virtually(scenario())


def test_a_joiner_whose_read_back_hangs_delays_publications_by_bounded_time():
    async def scenario() -> None:
        ends = Ends(ProofLevel.DELIVERED, share=1.0, state=State.JOINING)
        ends.seconds = 3600
        delays = []
        for _ in range(8):
            joining = asyncio.create_task(ends.join())
            await asyncio.sleep(0)
            before = now()
            await ends.prover.let_join(tuple(ends.members))
            delays.append(now() - before)
            await asyncio.gather(joining, return_exceptions=True)
        assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
        before = now()
        await ends.prover.let_join(())  # of a publication in which it has no part
        assert now() == before

    run_virtually(scenario())


def test_a_joiner_that_was_right_at_other_versions_is_read_at_the_one_that_it_joins_at():
    """A commit in which it had no part came between its last portion and the proof of it."""

    async def scenario() -> None:
        ends = Ends(ProofLevel.SAMPLED, share=0.5, state=State.JOINING)
        ends.seconds = 1.0
        joining = asyncio.create_task(ends.join())
        await asyncio.sleep(0.5)
        ends.step = 2
        ends.live, ends.manifest = version_of(2), manifest_of(2)
        await joining
        assert not ends.is_proven() and not ends.proofs
        await ends.join()
        assert ends.is_proven()
        assert ends.proofs["a"].version == VersionId(0, 2)
        assert ends.proofs["a"].level is ProofLevel.SAMPLED

    run_virtually(scenario())


async def test_a_window_that_a_commit_cuts_off_goes_on_after_it(world, tmp_path, monkeypatch):
    by_block(monkeypatch)

    async with joined(world, tmp_path, "a", config=sampling(1.0)) as coordinator:
        world.events.clear()
        await publish_in_haste(coordinator, world, last=7, seconds=0.05)
    read = [int(event.split()[3].partition("..")[0]) for event in coordinator_reads(world)]
    assert read[:5] == [0, 1, 2, 3, 4]  # of several versions


async def test_a_replica_joins_although_versions_follow_each_other_faster_than_it_is_read(
    world, tmp_path, monkeypatch
):
    by_block(monkeypatch)
    let_join = ReadBackProver.let_join

    is_waited_for = asyncio.Event()

    async def let_join_and_report(prover, members):
        is_waited_for.set()
        await let_join(prover, members)
        is_waited_for.clear()

    async def as_slow_as_may_be(name, version):
        if name == "b" and "b" not in names(coordinator):
            await is_waited_for.wait()

    monkeypatch.setattr(ReadBackProver, "let_join", let_join_and_report)
    async with joined(world, tmp_path, "a") as coordinator:
        world.hooks["read back"] = as_slow_as_may_be
        await join(coordinator, world, "b")
        for step in range(2, 12):
            await publish(coordinator, world, step)
        await until(lambda: names(coordinator) == ["a", "b"])
    committed = world.events.index("record 0.11")
    reads = [e for e in world.events[:committed] if e.startswith("b reads back")]
    assert reads[:5] == [f"b reads back {n}..{n}" for n in range(NUM_BLOCKS)]


async def test_a_run_that_needs_all_read_back_replaces_no_version_before(world, tmp_path):
    async with joined(world, tmp_path, "ab", level=ProofLevel.LOADED) as coordinator:
        await publish_in_haste(coordinator, world, last=4, seconds=0.05)
        for step in (2, 3):
            found = await coordinator.list_proofs([VersionId(0, step)])
            assert [one.level for one in found] == [ProofLevel.LOADED] * 2
    marks = ("record 0.", "a commits", "a reads")
    order = [event for event in world.events if event.startswith(marks)]
    first = order.index("record 0.2")
    assert order[first : first + 8] == [
        *("record 0.2", "a commits 0.2", "a reads back 0..4"),
        *("record 0.3", "a commits 0.3", "a reads back 0..4"),
        *("record 0.4", "a commits 0.4"),
    ]


async def test_a_restart_reads_back_what_the_run_needs_of_the_live_version(world, tmp_path):
    async with joined(world, tmp_path, "a", level=ProofLevel.LOADED) as coordinator:
        hangs = asyncio.Event()

        async def hang(name, version):
            hangs.set()
            await asyncio.Event().wait()

        world.hooks["read back"] = hang
        await publish_all(coordinator, world, 2)
        await hangs.wait()
    world.hooks.clear()
    async with running(world, tmp_path, level=ProofLevel.LOADED) as coordinator:
        [of_a] = await coordinator.list_proofs([VersionId(0, 2)])
        assert of_a.level is ProofLevel.DELIVERED
        await until(lambda: "a reads back 0..4" in world.events[-2:])
        async with asyncio.timeout(60):
            while of_a.level is not ProofLevel.LOADED:
                [of_a] = await coordinator.list_proofs([VersionId(0, 2)])
                await asyncio.sleep(0.01)


async def test_a_read_back_that_hangs_delays_each_commit_longer_until_it_is_given_up(
    world, tmp_path
):
    """It would else be begun again for ever, and nothing of that replica ever be read."""
    config = WeightSyncSection(sample_share=1.0, join_timeout=10, prove_timeout=1.5)

    async with joined(world, tmp_path, "ab", config=config, first_retry=3600) as coordinator:
        world.replicas["b"].proof = "silent"
        for step in range(2, 9):
            await publish(coordinator, world, step)
            if names(coordinator) == ["a"]:
                break
        assert "read-back of" in coordinator.routing().unroutable["b"]


def coordinator_reads(world) -> list[str]:
    return [event for event in world.events if "reads back" in event]


async def test_a_sampled_fault_takes_the_replica_out_until_it_is_fixed_under_another_name(
    world, tmp_path
):
    """Tokens of 0.2 from b exist that were made before the fault was found."""
    async with joined(world, tmp_path, "ab", config=sampling(1.0)) as coordinator:
        world.replicas["b"].proof = "wrong"
        await publish(coordinator, world, 2)
        await until(lambda: names(coordinator) == ["a"])
        world.replicas["b"].proof = "ok"
        await until(lambda: names(coordinator) == ["a", "b"])
        assert world.replicas["b"].maker == "b~1"
        proofs = {p.replica: p for p in await coordinator.list_proofs([VersionId(0, 2)])}
        assert "w block 2" in proofs["b"].fault
        assert proofs["b~1"] == proof("b~1", 2, NUM_BLOCKS)
        await publish(coordinator, world, 3)
        assert names(coordinator) == ["a", "b"]
        assert {p.replica for p in await coordinator.list_proofs([VersionId(0, 3)])} == {
            "a",
            "b~1",
        }
        assert proofs["b"] in await coordinator.list_proofs([VersionId(0, 2)])


async def test_a_replica_that_is_wrong_twice_has_a_third_name_and_a_restart_remembers(
    world, tmp_path
):
    async with joined(world, tmp_path, "a", config=sampling(1.0)) as coordinator:
        for step in (2, 4):
            world.replicas["a"].proof = "wrong"
            call = asyncio.create_task(publish(coordinator, world, step))
            await until(lambda: "w block 2" in coordinator.routing().unroutable.get("a", ""))
            world.replicas["a"].proof = "ok"
            await call
            await until(lambda: names(coordinator) == ["a"])
        assert world.replicas["a"].maker.startswith("a~")
    maker = world.replicas["a"].maker
    async with running(world, tmp_path, sampling(1.0)) as coordinator:
        await join(coordinator, world, "a")
        await publish_all(coordinator, world, 5)
        assert world.replicas["a"].maker == maker


async def test_verify_reads_everything_back_now(world, tmp_path):
    async with running(world, tmp_path, first_retry=3600) as coordinator:
        assert await coordinator.verify([]) == ((), {})
        await join(coordinator, world, "a", "b")
        assert await coordinator.verify(["a"]) == ((), {"a": "is being updated"})
        await publish_all(coordinator, world, 1)
        await publish_all(coordinator, world, 3)
        assert await coordinator.list_proofs([VersionId(0, 3)]) == (
            *(proof("a", 3, 0), proof("b", 3, 0)),
        )
        proofs, unroutable = await coordinator.verify([])
        assert proofs == (proof("a", 3, NUM_BLOCKS), proof("b", 3, NUM_BLOCKS))
        assert unroutable == {}
        with pytest.raises(InputError, match="'c' has not registered; known: a, b"):
            await coordinator.verify(["a", "c"])
        world.replicas["a"].wrong = {4}
        world.replicas["b"].proof = "gone"
        [of_a], unroutable = await coordinator.verify([])
        assert of_a.fault.startswith("b block 0 (0..2 of axis 0)")
        assert unroutable == {"b": "b: connection refused"}
        assert "a" in coordinator.routing().faults


async def test_versions_are_listed_with_their_proofs_also_after_a_restart(world, tmp_path):
    async def listed(coordinator):
        records = await coordinator.list_versions()
        assert await coordinator.list_versions(2) == records[:2]
        assert all(r.num_blocks == NUM_BLOCKS and r.num_bytes == 40 for r in records)
        return [(record.policy.version.step, record.proofs) for record in records]

    expected = [
        (5, (proof("a", 5, 0),)),
        (3, (proof("a", 3, 0),)),
        (1, (proof("a", 1, NUM_BLOCKS),)),
    ]
    async with running(world, tmp_path) as coordinator:
        assert await coordinator.list_versions() == ()
        await join(coordinator, world, "a")
        for step in (1, 3, 5):
            await publish_all(coordinator, world, step)
        assert await listed(coordinator) == expected
    async with running(world, tmp_path) as coordinator:
        assert await coordinator.list_proofs([VersionId(0, 3)]) == (proof("a", 3, 0),)
        assert await listed(coordinator) == expected
