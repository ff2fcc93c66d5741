import asyncio
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.weight_sync import catch_up, staging
from services.weight_sync.coordinator import Coordinator
from tests.weight_sync.fakes import (
    CALLER,
    RUN,
    FakeReplica,
    FakeRollout,
    RecordingStore,
    World,
    version_of,
)
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    InputError,
    OutOfOrderError,
    StaleEpochError,
    UnavailableError,
)
from trimaran.types import Caller, Replica, VersionId, VersionState

CONFIG = WeightSyncSection(stage_timeout=20, commit_timeout=5, join_timeout=10)
QUICK = WeightSyncSection(stage_timeout=0.4, commit_timeout=1, join_timeout=0.2)
PAUSE = 0.01


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(staging, "SETTLE_SECONDS", 0.05)
    return World()


@asynccontextmanager
async def running(world, folder, config=CONFIG, first_pause=PAUSE):
    store = RecordingStore(folder / "store.sqlite", world.events)
    coordinator = Coordinator(
        RUN, config, store, world.connect_trainer, world.connect_rollout, first_pause
    )
    coordinator.start()
    try:
        yield coordinator
    finally:
        await coordinator.close()
        store.close()


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def names(coordinator) -> list[str]:
    return [replica.name for replica in coordinator.routing().routable]


async def join(coordinator, world, *joining, **behavior) -> None:
    for name in joining:
        await coordinator.register(RUN, world.add(name, **behavior))


async def publish(coordinator, world, step=1, caller=CALLER):
    world.step = step
    return await coordinator.publish(caller, version_of(step))


def test_a_version_is_staged_recorded_and_committed_in_this_order(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "b")
            assert coordinator.routing().live is None
            assert coordinator.routing().unroutable == {"a": "", "b": ""}
            routing, metrics = await publish(coordinator, world)
            assert routing.live == replace(version_of(1), state=VersionState.ACTIVE)
            assert [replica.name for replica in routing.routable] == ["a", "b"]
            assert not routing.unroutable
            assert metrics["weight_sync/bytes"] == 4
            assert metrics["weight_sync/replicas"] == 2
            assert metrics["weight_sync/pause/seconds"] == 0.25
            assert {key for key in metrics if key.endswith("/seconds")} == {
                "weight_sync/stage/seconds",
                "weight_sync/commit/seconds",
                "weight_sync/pause/seconds",
            }

    asyncio.run(scenario())
    assert world.events == [
        "open 1 for 3",
        "send 0.1 in 1",
        "a stages 0.1 in 1",
        "b stages 0.1 in 1",
        "record 0.1",
        "a commits 0.1",
        "b commits 0.1",
    ]


def test_a_healthy_group_is_kept_while_its_members_stay(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world, 1)
            await publish(coordinator, world, 2)
            await join(coordinator, world, "b")  # came back: another process of the same name
            await until(lambda: names(coordinator) == ["a", "b"])
            await publish(coordinator, world, 3)

    asyncio.run(scenario())
    opened = [event for event in world.events if event.startswith("open")]
    assert opened == ["open 1 for 3", "open 1 for 3", "open 2 for 2", "open 3 for 3"]


@pytest.mark.parametrize("fault", ["gone", "silent"])
def test_a_lost_replica_does_not_stop_the_version(world, tmp_path, fault):
    async def scenario():
        async with running(world, tmp_path, replace_timeouts(stage=1.0)) as coordinator:
            await join(coordinator, world, "a", "c")
            await join(coordinator, world, "b", stage=fault)
            routing, _ = await publish(coordinator, world)
            assert [replica.name for replica in routing.routable] == ["a", "c"]
            assert "b" in routing.unroutable
            await until(lambda: "b aborts 0.1" in world.events)

    asyncio.run(scenario())
    assert world.events.index("open 2 for 3") < world.events.index("record 0.1")
    assert "b commits 0.1" not in world.events


def replace_timeouts(stage: float) -> WeightSyncSection:
    return WeightSyncSection(stage_timeout=stage, commit_timeout=5, join_timeout=10)


def test_a_replica_that_breaks_the_group_is_found_by_groups_of_one(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "c")
            await join(coordinator, world, "b", stage="broken")
            routing, _ = await publish(coordinator, world)
            assert [replica.name for replica in routing.routable] == ["a", "c"]
            assert routing.unroutable["b"] == "connection closed by a peer"

    asyncio.run(scenario())


def test_a_root_that_differs_is_never_committed(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await join(coordinator, world, "b", stage="wrong")
            routing, _ = await publish(coordinator, world)
            assert [replica.name for replica in routing.routable] == ["a"]
            assert "computed root another root" in routing.unroutable["b"]

    asyncio.run(scenario())
    assert "b commits 0.1" not in world.events


def test_replicas_that_are_being_updated_show_no_fault(world, tmp_path):
    seen = []

    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world, 1)
            commit = FakeRollout.commit_weights

            async def watched(self, version, timeout):
                seen.append(coordinator.routing())
                return await commit(self, version, timeout)

            FakeRollout.commit_weights = watched
            try:
                await publish(coordinator, world, 2)
            finally:
                FakeRollout.commit_weights = commit

    asyncio.run(scenario())
    assert [(r.live.version.step, r.routable) for r in seen] == [(2, ())] * 2
    assert not any(r.faults for r in seen)


def test_after_the_record_replicas_only_roll_forward(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await join(coordinator, world, "b", commit="gone")
            routing, _ = await publish(coordinator, world)
            assert routing.live.version == VersionId(0, 1)
            assert routing.unroutable == {"b": "commit 0.1: b: connection refused"}
            world.replicas["b"].commit = "ok"
            await until(lambda: names(coordinator) == ["a", "b"])

    asyncio.run(scenario())
    assert not any("aborts" in event for event in world.events)


def test_a_late_joiner_is_brought_up_in_a_group_of_its_own(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await publish(coordinator, world)
            await join(coordinator, world, "b")
            assert names(coordinator) == ["a"]
            await until(lambda: names(coordinator) == ["a", "b"])

    asyncio.run(scenario())
    assert world.events[-4:] == [
        "open 2 for 2",
        "send 0.1 in 2",
        "b stages 0.1 in 2",
        "b commits 0.1",
    ]


def test_a_joiner_waits_while_the_trainer_is_ahead(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await publish(coordinator, world, 1)
            world.step = 2  # trained, not yet published
            await join(coordinator, world, "b")
            await asyncio.sleep(5 * PAUSE)
            assert coordinator.routing().unroutable == {"b": ""}
            await publish(coordinator, world, 2)
            assert names(coordinator) == ["a", "b"]

    asyncio.run(scenario())


def test_publishing_again_changes_nothing(world, tmp_path):
    async def scenario():
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

    asyncio.run(scenario())


def test_a_caller_that_goes_away_does_not_tear_a_version(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            call = asyncio.create_task(publish(coordinator, world))
            await until(lambda: "open 1 for 2" in world.events)
            call.cancel()
            await until(lambda: names(coordinator) == ["a"])

    asyncio.run(scenario())
    assert world.events.count("record 0.1") == 1


def test_the_trainer_must_hold_the_version(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            world.step = 3
            with pytest.raises(OutOfOrderError, match=r"trainer holds 0\.3"):
                await coordinator.publish(CALLER, version_of(2))
            assert coordinator.routing().live is None

    asyncio.run(scenario())
    assert world.events == []


def test_when_the_trainer_goes_the_old_version_serves_on(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await publish(coordinator, world, 1)
            world.trainer = "gone"
            with pytest.raises(UnavailableError, match="trainer"):
                await publish(coordinator, world, 2)
            assert coordinator.routing().live.version == VersionId(0, 1)
            assert names(coordinator) == ["a"]
            await until(lambda: "a aborts 0.2" in world.events)

    asyncio.run(scenario())
    assert "record 0.2" not in world.events


@pytest.mark.parametrize("registered", [False, True])
def test_without_a_replica_publishing_ends_with_the_join_timeout(world, tmp_path, registered):
    async def scenario():
        async with running(world, tmp_path, QUICK) as coordinator:
            if registered:
                await join(coordinator, world, "a", stage="gone")
            why = "a: stage 0.1: a: connection refused" if registered else "none has registered"
            with pytest.raises(UnavailableError, match=f"no replica took version 0.1.*{why}"):
                await publish(coordinator, world)
            assert coordinator.routing().live is None

    asyncio.run(scenario())
    assert "record 0.1" not in world.events


def test_publishing_waits_for_the_first_replica(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            call = asyncio.create_task(publish(coordinator, world))
            await asyncio.sleep(0.02)
            await join(coordinator, world, "a")
            routing, _ = await call
            assert [replica.name for replica in routing.routable] == ["a"]

    asyncio.run(scenario())


def test_a_reported_replica_returns_when_it_answers(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world)
            await coordinator.report("b", "stream broke")
            assert coordinator.routing().unroutable == {"b": "reported: stream broke"}
            await until(lambda: names(coordinator) == ["a", "b"])
            with pytest.raises(InputError, match="'c' has not registered; known: a, b"):
                await coordinator.report("c", "")

    asyncio.run(scenario())


def test_a_replica_that_was_gone_for_long_returns(world, tmp_path, monkeypatch):
    monkeypatch.setattr(catch_up, "LONGEST_PAUSE_SECONDS", 4 * PAUSE)

    async def scenario():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world)
            world.replicas["b"].stage = "gone"
            await coordinator.report("b", "gone")
            await until(lambda: world.events.count("b aborts 0.1") == 20)
            world.replicas["b"].stage = "ok"
            await until(lambda: names(coordinator) == ["a", "b"])

    asyncio.run(scenario())


def test_publications_in_quick_succession_do_not_keep_a_replica_out(world, tmp_path):
    """Each one interrupts the catch-ups; the pause after a fault goes on all the same."""

    async def scenario():
        async with running(world, tmp_path, first_pause=0.2) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world, 1)
            await coordinator.report("b", "stream broke")
            for step in range(2, 200):
                await publish(coordinator, world, step)
                await asyncio.sleep(0.02)
                if names(coordinator) == ["a", "b"]:
                    return
            pytest.fail("b never came back")

    asyncio.run(scenario())


def test_a_publication_does_not_wait_for_a_replica_that_hangs(world, tmp_path):
    async def scenario():
        async with running(world, tmp_path, replace_timeouts(stage=3000)) as coordinator:
            await join(coordinator, world, "a", "b")
            await publish(coordinator, world, 1)
            world.replicas["b"].stage = "silent"
            await coordinator.report("b", "hangs")
            await until(lambda: "b stages 0.1 in 2" in world.events)
            async with asyncio.timeout(20):
                routing, _ = await publish(coordinator, world, 2)
            assert [replica.name for replica in routing.routable] == ["a"]

    asyncio.run(scenario())


def test_an_older_epoch_is_refused_also_after_a_restart(world, tmp_path):
    async def first():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await publish(coordinator, world, 1, Caller(RUN, 3))
            with pytest.raises(StaleEpochError, match="epoch 2 was replaced by 3"):
                await publish(coordinator, world, 2, Caller(RUN, 2))
            with pytest.raises(InputError, match="run 'other' is not served here"):
                await coordinator.meet(Caller("other", 9))

    async def second():
        async with running(world, tmp_path) as coordinator:
            with pytest.raises(StaleEpochError):
                await publish(coordinator, world, 2, Caller(RUN, 2))
            assert world.epochs == {3}

    asyncio.run(first())
    asyncio.run(second())


def test_a_restart_goes_on_from_the_store(world, tmp_path):
    async def first():
        async with running(world, tmp_path) as coordinator:
            await join(coordinator, world, "a")
            await publish(coordinator, world, 1)
            await join(coordinator, world, "b", commit="gone")
            await publish(coordinator, world, 2)
            return coordinator.routing()

    async def second():
        async with running(world, tmp_path) as coordinator:
            routing = coordinator.routing()
            world.replicas["b"].commit = "ok"
            await until(lambda: names(coordinator) == ["a", "b"])
            await publish(coordinator, world, 3)
            return routing

    before = asyncio.run(first())
    assert asyncio.run(second()) == before
    numbers = [int(event.split()[1]) for event in world.events if event.startswith("open")]
    assert numbers == sorted(numbers)


behaviors = st.sampled_from(["ok", "ok", "gone", "broken", "wrong"])
steps = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.tuples(behaviors, st.sampled_from(["ok", "gone"]))),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_whatever_fails_a_routable_replica_holds_the_live_version(changes):
    world = World()

    async def scenario(folder: Path):
        async with running(world, folder, QUICK) as coordinator:
            await join(coordinator, world, "a", "b", "c")
            for step, faults in enumerate(changes, start=1):
                for name, process in world.replicas.items():
                    process.stage, process.commit = faults.get(name, ("ok", "ok"))
                try:
                    await publish(coordinator, world, step)
                except UnavailableError:
                    assert set(faults) == set("abc")
                _check(coordinator, world.replicas)

    def _check(coordinator, replicas: dict[str, FakeReplica]):
        routing = coordinator.routing()
        for replica in routing.routable:
            assert isinstance(replica, Replica)
            assert replicas[replica.name].loaded == routing.live

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(scenario(Path(folder)))
