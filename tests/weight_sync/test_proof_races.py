"""What was found wrong stays on record, whatever is published, cut off or restarted meanwhile."""

import asyncio

import pytest

from services.weight_sync.ledger import VersionLedger
from services.weight_sync.members.pool import ReplicaPool
from tests.weight_sync.fakes import (
    CALLER,
    RUN,
    CrashError,
    manifest_of,
    version_of,
)
from tests.weight_sync.proving.test_proving import proof, sampling
from tests.weight_sync.test_coordinator import (
    join,
    joined,
    names,
    publish,
    publish_all,
    running,
    until,
)
from trimaran.errors import UnavailableError
from trimaran.store.sqlite import SqliteStore
from trimaran.types import VersionId


class SlowStore(SqliteStore):
    """Writes to keys that hold `mark` wait until they are let go."""

    mark = "nothing"

    def __init__(self, path) -> None:
        super().__init__(path)
        self.arrived, self.go = asyncio.Event(), asyncio.Event()

    async def put(self, key, value, expected=None) -> int:
        if self.mark in key:
            self.arrived.set()
            await asyncio.wait_for(self.go.wait(), 60)
        return await super().put(key, value, expected)


async def test_a_fault_whose_write_waits_behind_another_outlives_the_commit_of_the_next_version(
    tmp_path,
):
    store = SlowStore(tmp_path / "store.sqlite")
    ledger = await VersionLedger.open(store, RUN)
    await ledger.prepare(manifest_of(1))
    await ledger.commit(CALLER, version_of(1), manifest_of(1), [proof("a", 1, 0), proof("b", 1, 0)])
    store.mark = "version/0.1"
    first = asyncio.create_task(ledger.save_proofs([proof("b", 1, 5)]))
    await until(store.arrived.is_set)
    second = asyncio.create_task(ledger.save_proofs([proof("a", 1, 0, "wrong")]))
    await asyncio.sleep(0)
    await ledger.prepare(manifest_of(2))
    await ledger.commit(CALLER, version_of(2), manifest_of(2), [])
    store.go.set()
    await asyncio.gather(first, second)
    found = {p.replica: p.fault for p in await ledger.list_proofs([VersionId(0, 1)])}
    assert found == {"a": "wrong", "b": ""}
    await store.close()


async def test_a_fault_taints_every_version_since_the_block_was_last_right(tmp_path):
    """Read back: all of 0.1, blocks 0 and 1 of 0.3, block 2 of 0.4, block 0 of 0.5; then 2 and 4 of 0.6
    are wrong, of which 4 was last right in 0.1."""

    async def tainted(folder, wrong) -> tuple[dict[int, str], list[int]]:
        store = SqliteStore(folder)
        ledger = await VersionLedger.open(store, RUN)
        right = {1: ((0, 5),), 3: ((0, 2),), 4: ((2, 3),), 5: ((0, 1),)}
        for step in range(1, 7):
            await ledger.prepare(manifest_of(step))
            both = [proof("a", step, 0), proof("b", step, 0)]
            await ledger.commit(CALLER, version_of(step), manifest_of(step), both)
            if step in right:
                num_right = sum(end - first for first, end in right[step])
                await ledger.save_proofs([proof("a", step, num_right)], right[step])
        await store.close()
        store = SqliteStore(folder)
        ledger = await VersionLedger.open(store, RUN)  # a restart remembers
        await ledger.save_fault(proof("a", 6, 1, "w differs"), ((0, 1),), wrong)
        proofs = await ledger.list_proofs([VersionId(0, step) for step in range(1, 7)])
        assert not any(one.fault for one in proofs if one.replica == "b")
        assert [one.num_loaded for one in proofs if one.replica == "a"] == [5, 0, 2, 1, 1, 1]
        faults = {one.version.step: one.fault for one in proofs if one.fault}
        listed = await ledger.list_faults()
        assert {one.version.step: one.fault for one in listed} == faults
        assert await ledger.list_faults(len(listed) - 1) == listed[-1:]
        await store.close()
        return faults, [one.version.step for one in listed]

    faults, order = await tainted(tmp_path / "both", (2, 4))
    before = "found at 0.6, not read back since: w differs"
    assert faults == {6: "w differs"} | dict.fromkeys((2, 3, 4, 5), before)
    assert order == [6, 5, 4, 3, 2]
    assert (await tainted(tmp_path / "two", (2,)))[1] == [6, 5]
    assert (await tainted(tmp_path / "zero", (0,)))[1] == [6]


class FailingStore(SqliteStore):
    """Takes so many records yet."""

    num_left = 1000

    async def put(self, key, value, expected=None) -> int:
        self._take()
        return await super().put(key, value, expected)

    async def extend(self, stream, values, after=None) -> int:
        self._take()
        return await super().extend(stream, values, after)

    def _take(self) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            raise UnavailableError("the store is away")


@pytest.mark.parametrize("num_taken", range(4))
async def test_a_fault_that_was_recorded_by_half_is_listed_in_full_when_it_is_found_again(
    tmp_path, num_taken
):
    store = FailingStore(tmp_path / "store.sqlite")
    ledger = await VersionLedger.open(store, RUN)
    for step in (1, 2, 3):
        await ledger.prepare(manifest_of(step))
        await ledger.commit(CALLER, version_of(step), manifest_of(step), [proof("a", step, 0)])
    store.num_left = num_taken
    with pytest.raises(UnavailableError):
        await ledger.save_fault(proof("a", 3, 0, "wrong"), (), (2,))
    store.num_left = 1000
    ledger = await VersionLedger.open(store, RUN)
    for _ in range(2):
        await ledger.save_fault(proof("a", 3, 0, "wrong"), (), (2,))
        assert sorted(one.version.step for one in await ledger.list_faults()) == [1, 2, 3]
    found = await ledger.list_proofs([VersionId(0, step) for step in (1, 2, 3)])
    assert all(one.fault for one in found)
    await store.close()


async def test_the_versions_before_a_fault_that_a_sample_has_found_are_tainted(world, tmp_path):
    """The engine takes block 2 wrong from 0.3 on; nothing reads it before 0.4."""
    async with joined(world, tmp_path, "ab", config=sampling(1.0)) as coordinator:
        await publish_all(coordinator, world, 2)
        versions = [VersionId(0, step) for step in (2, 3, 4)]
        while sum(p.num_loaded for p in await coordinator.list_proofs(versions[:1])) < 10:
            await asyncio.sleep(0.01)
        world.replicas["b"].proof = "wrong"
        await publish_all(coordinator, world, 3)
        await publish(coordinator, world, 4)
        async with asyncio.timeout(60):
            while not (listed := await coordinator.list_faults(0)):
                await asyncio.sleep(0.01)
        assert [(p.version.step, p.replica) for p in listed] == [(4, "b"), (3, "b")]
        found = await coordinator.list_proofs(versions)
        faulty = {(p.version.step, p.replica) for p in found if p.fault}
        assert faulty == {(3, "b"), (4, "b")}


def hold_up(monkeypatch, name, when=lambda *_: True) -> tuple[asyncio.Event, asyncio.Event]:
    """The ledger's first call of that name has begun, and may go on."""
    call = getattr(VersionLedger, name)
    begun, go = asyncio.Event(), asyncio.Event()

    async def late(ledger, *arguments):
        if not begun.is_set() and when(*arguments):
            begun.set()
            await go.wait()
        return await call(ledger, *arguments)

    monkeypatch.setattr(VersionLedger, name, late)
    return begun, go


async def test_a_fault_is_recorded_also_when_the_next_commit_cuts_its_read_back_off(
    world, tmp_path, monkeypatch
):
    """The replica's tokens of that version wait for their batch, and are refused there."""

    def is_fault(proofs, *_):
        return any(one.fault for one in proofs)

    begun, go = hold_up(monkeypatch, "save_proofs", is_fault)
    async with joined(world, tmp_path, "ab", config=sampling(1.0)) as coordinator:
        world.replicas["b"].proof = "wrong"
        await publish(coordinator, world, 2)
        await begun.wait()
        world.replicas["b"].proof = "ok"
        call = asyncio.create_task(publish(coordinator, world, 3))
        await until(lambda: "b stages 0.3 in 1" in world.events)
        for _ in range(20):
            await asyncio.sleep(0)
        go.set()
        await call
        faults = {p.replica: p.fault for p in await coordinator.list_proofs([VersionId(0, 2)])}
        assert "w block 2" in faults["b"]
        await until(lambda: names(coordinator) == ["a", "b"])


async def test_a_wrong_block_that_the_next_version_left_in_place_is_fixed(
    world, tmp_path, monkeypatch
):
    """An operator's read-back holds no commit off. Its answer may be taken in after the next version,
    of which the engine has written what changed alone."""
    async with running(world, tmp_path, sampling(0.2)) as coordinator:
        await join(coordinator, world, "a", "b", in_place=True)
        for step in (1, 2, 3):
            await publish_all(coordinator, world, step)
        begun, go = hold_up(monkeypatch, "save_fault")
        world.replicas["b"].wrong = {2}
        verifying = asyncio.create_task(coordinator.verify(["b"]))
        await begun.wait()
        await publish(coordinator, world, 4)
        assert world.replicas["b"].wrong == {2}
        go.set()
        await verifying
        assert "b" not in names(coordinator)
        await until(lambda: names(coordinator) == ["a", "b"])
        assert (world.replicas["b"].maker, world.replicas["b"].wrong) == ("b~1", set())
        faulty = {(p.version.step, p.replica) for p in await coordinator.list_faults(0)}
        assert {(3, "b"), (4, "b")} <= faulty


async def test_a_version_that_becomes_live_while_a_fault_is_recorded_has_it_too(
    world, tmp_path, monkeypatch
):
    """An operator's read-back holds no commit off, and its record takes its time."""
    found = VersionLedger._find_tainted

    begun, go = asyncio.Event(), asyncio.Event()

    async def find_late(ledger, *fault):
        tainted = await found(ledger, *fault)
        begun.set()
        await go.wait()
        return tainted

    async with running(world, tmp_path, sampling(0.2)) as coordinator:
        await join(coordinator, world, "a", "b", in_place=True)
        for step in (1, 2, 3):
            await publish_all(coordinator, world, step)
        monkeypatch.setattr(VersionLedger, "_find_tainted", find_late)
        world.replicas["b"].wrong = {2}
        verifying = asyncio.create_task(coordinator.verify(["b"]))
        await begun.wait()
        await publish(coordinator, world, 4)
        assert (world.replicas["b"].maker, world.replicas["b"].wrong) == ("b", {2})
        go.set()
        await verifying
        faults = await coordinator.list_faults(0)
        assert [(p.version.step, p.replica) for p in faults].count((3, "b")) == 1
        assert (4, "b") in {(p.version.step, p.replica) for p in faults}
        proofs = await coordinator.list_proofs([VersionId(0, 4)])
        assert "found at 0.3" in next(p.fault for p in proofs if p.replica == "b")
        await until(lambda: names(coordinator) == ["a", "b"])
        assert world.replicas["b"].maker == "b~1"


async def test_a_fault_that_was_recorded_as_weight_sync_died_is_fixed_after_its_restart(
    world, tmp_path, monkeypatch
):
    """Between the record of the fault and that of the replica."""
    condemn = ReplicaPool.condemn

    died = asyncio.Event()

    async def die(*_):
        died.set()
        raise CrashError("the process is gone")

    monkeypatch.setattr(ReplicaPool, "condemn", die)
    async with joined(world, tmp_path, "a", config=sampling(1.0)) as coordinator:
        world.replicas["a"].proof = "wrong"
        await publish(coordinator, world, 2)
        await died.wait()
    monkeypatch.setattr(ReplicaPool, "condemn", condemn)
    world.replicas["a"].proof = "ok"
    async with running(world, tmp_path, sampling(1.0)) as coordinator:
        assert names(coordinator) == []
        await until(lambda: names(coordinator) == ["a"])
        assert world.replicas["a"].maker == "a~1"


async def test_a_replica_that_joins_during_a_publication_is_not_routable_without_a_proof(
    world, tmp_path
):
    """It was proven at the version before; tokens of the next one would wait for their proof."""
    staging, go, reading = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow_stage(name, version):
        if name == "a" and version.step == 2:
            staging.set()
            await go.wait()

    async def hang(name, version):
        if version.step == 2:
            reading.set()
            await asyncio.Event().wait()

    world.hooks = {"stage": slow_stage, "read back": hang}
    async with joined(world, tmp_path, "a", config=sampling(1.0)) as coordinator:
        call = asyncio.create_task(publish(coordinator, world, 2))
        await staging.wait()
        await join(coordinator, world, "b")
        await until(lambda: names(coordinator) == ["a", "b"])
        go.set()
        await call
        await until(lambda: "b commits 0.2" in world.events)
        await until(reading.is_set)
        assert names(coordinator) == ["a"]
