import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from services.weight_sync.coordinator import Coordinator
from services.weight_sync.ledger import VersionLedger
from services.weight_sync.pauses import Pauses
from tests.trimaran.store.test_sqlite import hang
from tests.weight_sync.fakes import (
    CALLER,
    RUN,
    RecordingStore,
    take_over,
    version_of,
)
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    InputError,
    OutOfOrderError,
    StaleEpochError,
    UnavailableError,
)
from trimaran.store.sqlite import SqliteStore
from trimaran.telemetry.metrics import find_metric
from trimaran.types import Caller, ProofLevel, VersionId

CONFIG = WeightSyncSection(stage_timeout=20, commit_timeout=5, join_timeout=10)
QUICK = WeightSyncSection(stage_timeout=20, commit_timeout=5, join_timeout=0.2, prove_timeout=10)
"""Where nothing takes a version, it is given up soon."""
PAUSE = 0.01


@asynccontextmanager
async def running(world, folder, config=CONFIG, level=ProofLevel.DELIVERED, **pauses):
    """`pauses`: as in Pauses; by default all are short."""
    store = RecordingStore(folder / "store.sqlite", world)
    coordinator = Coordinator(
        *(RUN, config, await VersionLedger.open(store, RUN)),
        *(world.connect_senders, world.connect_rollout),
        Pauses(**{"first_retry": PAUSE, "settle": 0.05, **pauses}),
        level,
    )
    coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()
        await store.close()


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def names(coordinator) -> list[str]:
    return [replica.name for replica in coordinator.routing().routable]


def live_of(coordinator) -> VersionId | None:
    live = coordinator.routing().live
    return live and live.version


async def join(coordinator, world, *joining, **behavior) -> None:
    for name in joining:
        await coordinator.register(RUN, *world.add(name, **behavior))


async def publish(coordinator, world, step=1, caller=CALLER):
    world.step = step
    return await coordinator.publish(caller, version_of(step))


async def publish_all(coordinator, world, step=1):
    """Until every member is proven at the version."""
    answer = await publish(coordinator, world, step)
    await until(lambda: len(names(coordinator)) == len(world.replicas))
    return answer


@asynccontextmanager
async def joined(world, folder, members, **options):
    """Running, and every one of `members` is proven at version 1."""
    async with running(world, folder, **options) as coordinator:
        await join(coordinator, world, *members)
        await publish_all(coordinator, world)
        yield coordinator


def without_proofs(events):
    return [event for event in events if "reads back" not in event]


async def test_a_version_is_staged_recorded_committed_and_proven_in_this_order(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a", "b")
        assert coordinator.routing().live is None
        assert coordinator.routing().unroutable == {"a": "", "b": ""}
        routing, metrics = await publish(coordinator, world)
        assert routing.live == version_of(1)
        await until(lambda: names(coordinator) == ["a", "b"])
        assert not coordinator.routing().unroutable
        assert metrics["weight_sync/bytes"] == metrics["weight_sync/bytes/collective"] == 80
        assert metrics["weight_sync/replicas"] == 2
        assert metrics["weight_sync/relayed"] == 0
        assert metrics["weight_sync/pause/seconds"] == 0.25
        assert {key for key in metrics if key.endswith("/seconds")} == {
            "weight_sync/stage/seconds",
            "weight_sync/commit/seconds",
            "weight_sync/pause/seconds",
        }
    assert world.events == [
        "open 1 for 3",
        "send 0.1 in 1",
        "a stages 0.1 in 1",
        "b stages 0.1 in 1",
        "record 0.1",
        "a commits 0.1",
        "b commits 0.1",
        "a reads back 0..4",
        "b reads back 0..4",
    ]


async def test_a_healthy_group_is_kept_while_its_members_stay(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        await publish_all(coordinator, world, 2)
        await join(coordinator, world, "b")  # came back: another process of the same name
        await until(lambda: names(coordinator) == ["a", "b"])
        await publish_all(coordinator, world, 3)
    opened = [event for event in world.events if event.startswith("open")]
    assert opened == ["open 1 for 3", "open 1 for 3", "open 2 for 3"]


async def test_a_block_that_nothing_offers_is_named(world, tmp_path):
    world.shares = (((0, 2),), ((2, 4),))

    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        with pytest.raises(InputError, match="no sender offers blocks 4..4 .b and on"):
            await publish(coordinator, world)
    assert world.events == []


async def test_a_delta_goes_to_those_that_hold_its_base(world, tmp_path):
    world.delta = True

    async with running(world, tmp_path, first_retry=3600) as coordinator:
        await join(coordinator, world, "a", "b")
        _, metrics = await publish_all(coordinator, world, 1)
        assert "weight_sync/delta/share" not in metrics
        _, metrics = await publish(coordinator, world, 2)
        assert metrics["weight_sync/delta/share"] == 5 / 40
        assert all(map(find_metric, metrics))
        assert metrics["weight_sync/bytes"] == 10
    assert "send delta of 0.2 in 1" in world.events
    assert "a stages 0.2 a delta in 1" in world.events


async def test_a_delta_that_is_refused_becomes_a_full_sync(world, tmp_path):
    world.delta = True

    async with joined(world, tmp_path, "ab") as coordinator:
        world.replicas["b"].loaded = version_of(7)  # it holds something else than we believe
        routing, metrics = await publish(coordinator, world, 2)
        assert [replica.name for replica in routing.routable] == ["a", "b"]
        assert metrics["weight_sync/relayed"] == 1
    assert "b stages 0.2 from a" in world.events


@pytest.mark.parametrize(
    ("fault", "reason"), [("gone", ""), ("silent", ""), ("broken", "its own network is broken")]
)
async def test_survivors_of_a_broken_group_finish_the_version_by_relay(
    world, tmp_path, fault, reason
):
    async with running(world, tmp_path, replace_timeouts(stage=2.0)) as coordinator:
        await join(coordinator, world, "a", "c")
        await join(coordinator, world, "b", stage=fault)
        world.replicas["a"].stage = world.replicas["c"].stage = "torn"
        routing, metrics = await publish(coordinator, world)
        assert reason in routing.unroutable["b"]
        assert metrics["weight_sync/relayed"] == metrics["weight_sync/replicas"] == 2
        await until(lambda: names(coordinator) == ["a", "c"])
        await until(lambda: "b aborts 0.1" in world.events)
        world.replicas["a"].stage = world.replicas["c"].stage = "ok"
        await publish(coordinator, world, 2)
    assert "a stages 0.1 from trainer0" in world.events
    assert world.events.index("a stages 0.1 from trainer0") < world.events.index("record 0.1")
    assert "b commits 0.1" not in world.events
    assert "open 2 for 3" in world.events  # the broken group is not used again


def replace_timeouts(stage: float) -> WeightSyncSection:
    return WeightSyncSection(stage_timeout=stage, commit_timeout=5, join_timeout=10)


async def test_a_root_that_differs_is_never_committed(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        await join(coordinator, world, "b", stage="wrong")
        routing, _ = await publish(coordinator, world)
        assert [replica.name for replica in routing.routable] == ["a"]
        assert "computed root another root" in routing.unroutable["b"]
    assert "b commits 0.1" not in world.events


async def test_replicas_that_are_being_updated_show_no_fault(world, tmp_path):
    seen = []

    async def look(name, version):
        seen.append(coordinator.routing())

    async with joined(world, tmp_path, "ab") as coordinator:
        world.hooks["commit"] = look
        await publish(coordinator, world, 2)
    assert [(r.live.version.step, r.routable) for r in seen] == [(2, ())] * 2
    assert not any(r.faults for r in seen)


async def test_after_the_record_replicas_only_roll_forward(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        await join(coordinator, world, "b", commit="gone")
        routing, _ = await publish(coordinator, world)
        assert routing.live.version == VersionId(0, 1)
        assert routing.unroutable == {"b": "commit 0.1: b: connection refused"}
        world.replicas["b"].commit = "ok"
        await until(lambda: names(coordinator) == ["a", "b"])
    assert not any("aborts" in event for event in world.events)


async def test_a_late_joiner_pulls_from_a_replica_and_is_proven_before_it_is_routable(
    world, tmp_path
):
    async with joined(world, tmp_path, "a") as coordinator:
        world.events.clear()
        await join(coordinator, world, "b")
        assert names(coordinator) == ["a"]
        await until(lambda: names(coordinator) == ["a", "b"])
    assert world.events == ["b stages 0.1 from a", "b commits 0.1", "b reads back 0..4"]


async def test_a_joiner_waits_while_nothing_holds_the_version(world, tmp_path):
    async with joined(world, tmp_path, "a") as coordinator:
        world.step = 2  # trained, not yet published
        world.replicas["a"].proof = world.replicas["a"].stage = "gone"
        await coordinator.report("a", "gone")
        await join(coordinator, world, "b")
        await asyncio.sleep(5 * PAUSE)
        assert coordinator.routing().unroutable["b"] == ""
        await publish(coordinator, world, 2)
        assert names(coordinator) == ["b"]


async def test_publishing_again_changes_nothing(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        first, second = await asyncio.gather(
            publish(coordinator, world, 2), publish(coordinator, world, 2)
        )
        assert first == second
        before = list(world.events)
        assert await publish(coordinator, world, 2) == (first[0], {})
        with pytest.raises(OutOfOrderError, match="0.2 with root .* is live"):
            await publish(coordinator, world, 1)
        with pytest.raises(OutOfOrderError, match="root other"):
            await coordinator.publish(CALLER, replace(version_of(2), root="other"))
        assert world.events == before
        assert names(coordinator) == ["a"]


async def test_a_caller_that_goes_away_does_not_tear_a_version(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        call = asyncio.create_task(publish(coordinator, world))
        await until(lambda: "open 1 for 2" in world.events)
        call.cancel()
        await until(lambda: names(coordinator) == ["a"])
    assert world.events.count("record 0.1") == 1


async def test_the_trainer_must_hold_the_version(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        world.step = 3
        with pytest.raises(OutOfOrderError, match=r"trainer rank 0 holds 0\.3"):
            await coordinator.publish(CALLER, version_of(2))
        assert coordinator.routing().live is None
    assert world.events == []


async def test_when_the_trainer_goes_the_old_version_serves_on(world, tmp_path):
    async with joined(world, tmp_path, "a") as coordinator:
        world.trainer = "dies"
        with pytest.raises(UnavailableError, match="connection reset"):
            await publish(coordinator, world, 2)
        assert live_of(coordinator) == VersionId(0, 1)
        assert names(coordinator) == ["a"]
        await until(lambda: "a aborts 0.2" in world.events)
    assert "record 0.2" not in world.events


async def test_while_nothing_can_take_the_next_version_the_old_one_serves_on(world, tmp_path):
    """Their own transfers break, but they answer: what they hold is as it was."""

    async with joined(world, tmp_path, "ab", config=QUICK) as coordinator:
        for name in "ab":
            world.replicas[name].stage = "broken"
        with pytest.raises(UnavailableError, match="its own network is broken"):
            await publish(coordinator, world, 2)
        assert (live_of(coordinator), names(coordinator)) == (VersionId(0, 1), ["a", "b"])
        for name in "ab":
            world.replicas[name].stage = "ok"
        await publish_all(coordinator, world, 2)


@pytest.mark.parametrize("registered", [False, True])
async def test_without_a_replica_publishing_ends_with_the_join_timeout(world, tmp_path, registered):
    async with running(world, tmp_path, QUICK) as coordinator:
        if registered:
            await join(coordinator, world, "a", stage="gone")
        why = "a: stage 0.1: a: connection refused" if registered else "none has registered"
        with pytest.raises(UnavailableError, match=f"no replica took version 0.1.*{why}"):
            await publish(coordinator, world)
        assert coordinator.routing().live is None
    assert "record 0.1" not in world.events


async def test_publishing_waits_for_the_first_replica(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        call = asyncio.create_task(publish(coordinator, world))
        await asyncio.sleep(0.02)
        await join(coordinator, world, "a")
        routing, _ = await call
        assert [replica.name for replica in routing.routable] == ["a"]


async def test_a_reported_replica_returns_when_it_answers(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        world.events.clear()
        await coordinator.report("b", "stream broke")
        assert coordinator.routing().unroutable == {"b": "reported: stream broke"}
        await until(lambda: names(coordinator) == ["a", "b"])
        with pytest.raises(InputError, match="'c' has not registered; known: a, b"):
            await coordinator.report("c", "")
    assert world.events == ["b reads back 0..4"]  # what it holds is right: nothing travels


async def test_publications_in_quick_succession_do_not_keep_a_replica_out(world, tmp_path):
    """Each one interrupts the catch-ups; the pause after a fault goes on all the same."""
    async with joined(world, tmp_path, "ab", first_retry=0.2) as coordinator:
        await coordinator.report("b", "stream broke")
        for step in range(2, 200):
            await publish(coordinator, world, step)
            await asyncio.sleep(0.02)
            if names(coordinator) == ["a", "b"]:
                return
        pytest.fail("b never came back")


async def test_a_publication_does_not_wait_for_a_replica_that_hangs(world, tmp_path):
    async with joined(world, tmp_path, "ab", config=replace_timeouts(stage=3000)) as coordinator:
        process = world.replicas["b"]
        process.stage, process.proof = "silent", "gone"
        await coordinator.report("b", "hangs")
        await until(lambda: "b stages 0.1 and hangs" in world.events)
        async with asyncio.timeout(60):
            routing, _ = await publish(coordinator, world, 2)
        assert [replica.name for replica in routing.routable] == ["a"]


async def test_an_older_epoch_is_refused_also_after_a_restart(world, tmp_path):
    async with running(world, tmp_path) as coordinator:
        await join(coordinator, world, "a")
        await take_over(tmp_path)
        await take_over(tmp_path)
        await publish(coordinator, world, 1, Caller(RUN, 3))
        with pytest.raises(StaleEpochError, match="epoch 2 was replaced by 3"):
            await publish(coordinator, world, 2, Caller(RUN, 2))
        with pytest.raises(InputError, match="run 'other' is not served here"):
            await coordinator.meet(Caller("other", 9))
    async with running(world, tmp_path) as coordinator:
        with pytest.raises(StaleEpochError):
            await publish(coordinator, world, 2, Caller(RUN, 2))
        assert world.epochs == {3}


async def test_a_restart_goes_on_from_the_store(world, tmp_path):
    # b is tried once, so that nothing changes any more between the routing and the end.
    async with joined(world, tmp_path, "a", first_retry=3600) as coordinator:
        await join(coordinator, world, "b", commit="gone")
        await until(lambda: coordinator.routing().unroutable.get("b"))
        await publish(coordinator, world, 2)
        before = coordinator.routing()
    async with running(world, tmp_path) as coordinator:
        assert coordinator.routing() == before
        world.replicas["b"].commit = "ok"
        await until(lambda: names(coordinator) == ["a", "b"])
        await publish(coordinator, world, 3)
    numbers = [int(event.split()[1]) for event in world.events if event.startswith("open")]
    assert numbers == sorted(numbers)


def heartbeats(timeout: float) -> WeightSyncSection:
    # Shorter than a configuration may ask for, so that the tests are quick.
    return WeightSyncSection.model_construct(heartbeat_timeout=timeout, join_timeout=10)


async def test_a_silent_replica_leaves_routing_and_is_tried_again(world, tmp_path):
    async with running(world, tmp_path, heartbeats(0.3)) as coordinator:
        replica, peer = world.add("a")
        registration = await coordinator.register(RUN, replica, peer)
        assert registration.incarnation == 1
        assert registration.heartbeat_seconds == pytest.approx(0.06)
        await publish(coordinator, world)
        world.events.clear()
        seen = []
        await until(lambda: seen.append(coordinator.routing().unroutable) or seen[-1])
        assert seen[-1] == {"a": "silent for 0.3 s"}
        await until(lambda: names(coordinator) == ["a"])
    assert world.events[0] == "a reads back 0..4"


@pytest.mark.parametrize("error", [UnavailableError("no answer"), InputError("refuses us")])
async def test_the_watch_over_replicas_outlives_a_store_that_fails(
    world, tmp_path, monkeypatch, error
):
    """A Redis that refuses us after a fail-over is set right by an operator, who starts no process again."""
    saved = VersionLedger.save_members

    failed = asyncio.Event()

    async def fail(ledger):
        failed.set()
        raise error

    async with joined(world, tmp_path, "a", config=heartbeats(0.3)) as coordinator:
        monkeypatch.setattr(VersionLedger, "save_members", fail)
        await until(failed.is_set)
        monkeypatch.setattr(VersionLedger, "save_members", saved)
        await until(lambda: names(coordinator) == ["a"])


@pytest.mark.e2e
async def test_signs_of_life_keep_a_replica_in_routing_and_write_nothing(world, tmp_path):
    async with joined(world, tmp_path, "a", config=heartbeats(2.0)) as coordinator:
        world.points_left = 10**6
        live = coordinator.routing().live
        for _ in range(25):
            assert await coordinator.heartbeat(RUN, "a", 1, live)
            assert names(coordinator) == ["a"]
            await asyncio.sleep(0.1)
        assert world.points_left >= 10**6 - 4  # what was still under way


async def test_a_weight_sync_that_stood_still_takes_no_replica_for_silent(world, tmp_path):
    async with joined(world, tmp_path, "a", config=heartbeats(1.0)) as coordinator:
        time.sleep(1.5)  # the whole process, as after SIGSTOP
        await asyncio.sleep(0.3)
        assert names(coordinator) == ["a"]


async def test_a_replica_that_holds_another_version_than_believed_catches_up(world, tmp_path):
    async with joined(world, tmp_path, "ab") as coordinator:
        world.replicas["b"].loaded = None  # its engine was started again
        for _ in range(2):
            assert names(coordinator) == ["a", "b"]
            await coordinator.heartbeat(RUN, "b", 1, None)
        assert coordinator.routing().unroutable == {"b": "holds nothing instead of 0.1"}
        await until(lambda: names(coordinator) == ["a", "b"])
        assert world.replicas["b"].loaded is not None


async def test_what_was_staged_is_rolled_forward_after_a_restart_without_the_trainer(
    world, tmp_path
):
    """The process died behind the commit record, the trainer goes on training."""

    async with joined(world, tmp_path, "ab") as coordinator:
        world.replicas["a"].commit = world.replicas["b"].commit = "silent"
        call = asyncio.create_task(publish(coordinator, world, 2))
        await until(lambda: "record 0.2" in world.events)
        call.cancel()
    world.step = 3
    for process in world.replicas.values():
        process.commit = "ok"
    async with running(world, tmp_path) as coordinator:
        await until(lambda: names(coordinator) == ["a", "b"])
        assert live_of(coordinator) == VersionId(0, 2)


@pytest.mark.parametrize("transport", ["collective", "relay"])
async def test_a_frozen_replica_holds_the_others_up_no_longer_than_its_heartbeats(
    world, tmp_path, transport
):
    config = WeightSyncSection.model_construct(
        stage_timeout=3000, heartbeat_timeout=0.4, transport=transport
    )

    async with running(world, tmp_path, config) as coordinator:
        await join(coordinator, world, "a", stage="torn")
        await join(coordinator, world, "b", stage="silent")

        async def live_on():
            while True:
                await coordinator.heartbeat(RUN, "a", 1, coordinator.routing().live)
                await asyncio.sleep(0.02)

        beating = asyncio.create_task(live_on())
        async with asyncio.timeout(60):
            routing, _ = await publish(coordinator, world)
        beating.cancel()
        assert [replica.name for replica in routing.routable] == ["a"]
        assert "silent for 0.4 s" in routing.unroutable["b"]


async def test_a_replica_that_registers_again_is_not_waited_for(world, tmp_path):
    async with running(world, tmp_path, replace_timeouts(stage=3000)) as coordinator:
        await join(coordinator, world, "a")
        await join(coordinator, world, "b", stage="silent")
        call = asyncio.create_task(publish(coordinator, world))
        await until(lambda: "b stages 0.1 and hangs" in world.events)
        world.replicas["a"].stage = "torn"
        await join(coordinator, world, "b")
        async with asyncio.timeout(60):
            await call
        await until(lambda: names(coordinator) == ["a", "b"])


async def test_a_disk_that_hangs_fails_what_had_to_be_recorded_and_the_old_version_serves(
    world, tmp_path
):
    async with joined(world, tmp_path, "a") as coordinator:
        tasks = coordinator._catch_ups._tasks.values()
        await until(lambda: all(task.done() for _, task in tasks))  # a's proof is recorded
        store = coordinator._ledger._store
        assert isinstance(store, SqliteStore)
        disk = hang(store, "INSERT")
        store.file.disk.timeout = 0.05
        with pytest.raises(UnavailableError, match="store.sqlite: its disk has not answered"):
            await publish(coordinator, world, 2)
        assert names(coordinator) == ["a"] and live_of(coordinator) == VersionId(0, 1)
        disk.let_go.set()
        await until(lambda: not store.file.disk.hangs)
        store.file.disk.timeout = 60
        await publish(coordinator, world, 2)
        assert live_of(coordinator) == VersionId(0, 2)
