"""Staging, loading and reading back on one replica, against a recording receiver and engine."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from services.rollout.weights import NUM_OVERDUE_CHECKS, THREAD_SECONDS, ReplicaWeights
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    DeadlineError,
    InputError,
    InternalError,
    OutOfOrderError,
    TransferError,
    UnavailableError,
)
from trimaran.run.device_turns import DeviceTurn
from trimaran.types import PolicyVersion, Staged, TensorInfo, TransferLimits, Transport, VersionId
from weights.version.manifest import build_manifest, list_digests

FIRST, SECOND = (
    build_manifest([TensorInfo("w", "F32", (4,), 0, (2,), (letter * 32, "f" * 32))])
    for letter in "ab"
)
MAKER = "rollout-0"
ONE, TWO = (
    PolicyVersion("run", VersionId(0, step), manifest.root)
    for step, manifest in ((1, FIRST), (2, SECOND))
)
MANIFESTS = {ONE: FIRST, TWO: SECOND}
EVERYTHING = ((0, 2),)


class Receiver:
    """Stages at once, unless `gate` is set: then it waits for it, as a thread does."""

    def __init__(self, events):
        self.events, self.staged, self.gate = events, None, None
        self.base = ""
        """Root of the version that the next one is said to be a few changes away from."""

    def stage(self, version, manifest, sources, limits, attempt, keep_held):
        if self.gate is not None:
            assert self.gate.acquire(timeout=10)
        changes = SimpleNamespace(base_root=self.base) if self.base else None
        shadow = SimpleNamespace(manifest=manifest, changes=changes)
        self.staged = SimpleNamespace(version=version, shadow=shadow)
        self.events.append(f"staged {version.version}")
        return Staged(manifest.root, manifest.num_blocks, {Transport.MEMORY: 16})

    def keep(self, version):
        self.staged = None
        self.events.append(f"kept {version}")

    def discard(self, version, attempt):
        self.staged = None
        self.events.append(f"discarded {version}")


class Engine:
    def __init__(self, events):
        self.events, self.sleeps = events, True
        self.error: BaseException | None = None
        self.loaded: Any = None
        self.may_load: asyncio.Event | None = None
        self.may_read: asyncio.Event | None = None

    async def load_weights(self, shadow, version):
        if self.may_load:
            await self.may_load.wait()
        how = ", changes alone" if shadow.changes else ""
        self.events.append(f"loaded {version}{how}")
        if self.error:
            raise self.error
        self.loaded = shadow.manifest
        return 0.25

    async def sleep(self):
        self.events.append("asleep")
        if not self.sleeps:
            raise RuntimeError("it stays awake")

    async def read_back(self, manifest, ranges):
        if self.may_read:
            await self.may_read.wait()
        return dict(enumerate(list_digests(self.loaded)))


@asynccontextmanager
async def running(thread_timeout=THREAD_SECONDS, check_engine=None, turn=None, **settings):
    """The weights of a replica, with the receiver and the engine that record what is asked of them."""
    events: list[str] = []
    receiver: Any = Receiver(events)
    engine: Any = Engine(events)
    config = WeightSyncSection(**settings)
    yield (
        ReplicaWeights(MAKER, engine, receiver, config, thread_timeout, check_engine, turn),
        receiver,
        engine,
    )


async def stage(weights, version, seconds: float = 10) -> None:
    await weights.stage(
        version, MANIFESTS[version], [], TransferLimits(bucket_bytes=1, timeout=seconds)
    )


async def publish(weights, version) -> float:
    await stage(weights, version)
    return await weights.commit(version, MAKER)


@asynccontextmanager
async def holding_one(**options):
    """As `running`, with a live version."""
    async with running(**options) as (weights, receiver, engine):
        await publish(weights, ONE)
        yield weights, receiver, engine


async def test_a_version_is_staged_loaded_kept_and_read_back():
    async with running() as (weights, receiver, _):
        assert weights.live is None
        assert await publish(weights, ONE) == 0.25
        assert weights.live == ONE
        assert await weights.commit(ONE, MAKER) == 0
        assert await weights.read_back(ONE.version, EVERYTHING, 10) == ("a" * 32, "f" * 32)
    assert receiver.events == ["staged 0.1", "loaded 0.1", "kept 0.1"]


@pytest.fixture
def own(tmp_path):
    """The replica's turn on its devices."""
    return DeviceTurn(tmp_path, (0,), "rollout-0")


@pytest.fixture
def trainer(tmp_path):
    """The trainer's, on the same."""
    return DeviceTurn(tmp_path, (0,), "trainer-0")


@pytest.mark.parametrize(
    "case", ["", "another base", "a wrong block was found", "the last load failed", "asleep"]
)
async def test_changes_alone_are_loaded_over_their_base_and_nothing_else(own, case):
    async with holding_one(turn=own) as (weights, receiver, engine):
        receiver.base = SECOND.root if case == "another base" else FIRST.root
        if case == "the last load failed":
            engine.error = TransferError("torn")
            with pytest.raises(TransferError, match="torn"):
                await publish(weights, TWO)
            engine.error = None
        elif case == "asleep":
            await weights.sleep()
        await stage(weights, TWO)
        await weights.commit(TWO, f"{MAKER}~1" if case == "a wrong block was found" else MAKER)
    loaded = [event for event in receiver.events if "loaded" in event][-1]
    assert loaded == ("loaded 0.2" if case else "loaded 0.2, changes alone")


async def test_one_that_sleeps_is_woken_by_a_staged_version_alone(own, trainer):
    async with running(turn=own) as (weights, receiver, _):
        assert weights.is_asleep  # since its start
        await publish(weights, ONE)
        assert not weights.is_asleep
        await weights.sleep()
        await weights.sleep()
        assert weights.is_asleep
        assert weights.live == ONE, "as weight sync believes"
        await trainer.take(0)
        with pytest.raises(OutOfOrderError, match="sleeps while the trainer has its devices"):
            await weights.read_back(ONE.version, EVERYTHING, 1)
        trainer.release()
        with pytest.raises(OutOfOrderError, match="not staged"):
            await weights.commit(ONE, MAKER)
        await publish(weights, TWO)
        assert (weights.live, weights.is_asleep) == (TWO, False)
    done = [event for event in receiver.events if event.startswith(("loaded", "asleep"))]
    assert done == ["loaded 0.1", "asleep", "loaded 0.2"]


async def test_a_commit_waits_for_the_trainers_turn_and_no_load_has_failed(own, trainer):
    async with running(turn=own, commit_timeout=0.05, stage_timeout=0.05) as (weights, _, _):
        await stage(weights, ONE)
        await trainer.take(0)
        for _ in range(4):
            with pytest.raises(UnavailableError, match="in use by trainer-0"):
                await weights.commit(ONE, MAKER)
        weights.check()  # it may go on
        trainer.release()
        await weights.commit(ONE, MAKER)
        assert weights.live == ONE


async def test_a_read_back_ends_where_the_engine_goes_to_sleep(own):
    async with holding_one(turn=own) as (weights, _, engine):
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await weights.sleep()
        with pytest.raises(OutOfOrderError, match="sleeps while the trainer"):
            await reading


@pytest.mark.parametrize("fault", ["a load hangs", "it stays awake"])
async def test_one_that_does_not_sleep_ends_and_so_its_turn(own, fault):
    async with holding_one(turn=own, commit_timeout=0.05) as (weights, _, engine):
        engine.sleeps = fault != "it stays awake"
        if fault == "a load hangs":
            weights._thread_timeout = 0.05  # a busy machine takes longer for a thread
            await weights._loading.acquire()
        with pytest.raises(DeadlineError if engine.sleeps else RuntimeError):
            await weights.sleep()
        assert weights.live is None
        with pytest.raises(InternalError, match="did not leave its devices to the trainer"):
            weights.check()
        assert own.is_taken, "until its process has ended"


async def test_one_with_devices_of_its_own_refuses_to_sleep():
    async with running() as (weights, _, _):
        with pytest.raises(InputError, match="devices of its own"):
            await weights.sleep()


@pytest.mark.parametrize(("answers", "checks"), [([True], 1), ([False, True], 2)])
async def test_an_engine_is_checked_until_it_is_known_before_a_version_is_live(answers, checks):
    checked = []

    async def check():
        checked.append((engine.loaded, weights.live))
        return answers[len(checked) - 1]

    async with running(check_engine=check) as (weights, _, engine):
        for version in (ONE, TWO, ONE):
            await publish(weights, version)
        weights.check()
    assert [loaded for loaded, _ in checked] == [FIRST, SECOND][:checks]
    assert checked[0] == (FIRST, None)


async def test_an_unfit_engine_ends_its_replica_and_never_serves():
    async def unfit():
        raise InputError("its log-probabilities are raw")

    async with running(check_engine=unfit) as (weights, _, _):
        with pytest.raises(InputError, match="are raw"):
            await publish(weights, ONE)
        assert weights.live is None
        with pytest.raises(InputError, match="its log-probabilities are raw"):
            weights.check()


async def test_a_check_that_does_not_end_fails_the_load_which_may_be_tried_again():
    ends = asyncio.Event()

    async with running(check_engine=ends.wait, commit_timeout=0.05) as (weights, _, _):
        with pytest.raises(TransferError, match="no end after"):
            await publish(weights, ONE)
        weights.check()
        ends.set()
        await publish(weights, ONE)
        assert weights.live == ONE


async def test_what_is_not_staged_is_not_loaded():
    async with holding_one() as (weights, _, _):
        with pytest.raises(OutOfOrderError, match="0.2 is not staged on rollout-0"):
            await weights.commit(TWO, MAKER)
        other_root = PolicyVersion("run", TWO.version, FIRST.root)
        await weights.stage(other_root, FIRST, [], TransferLimits(bucket_bytes=1, timeout=10))
        with pytest.raises(OutOfOrderError):
            await weights.commit(TWO, MAKER)
        assert weights.live == ONE


ERRORS = [TransferError("torn"), RuntimeError("unforeseen"), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS)
async def test_a_load_that_fails_leaves_nothing_live(error):
    async with holding_one() as (weights, _, engine):
        engine.error = error
        with pytest.raises(type(error)):
            await publish(weights, TWO)
        assert weights.live is None
        with pytest.raises(OutOfOrderError, match="holds None"):
            await weights.read_back(ONE.version, EVERYTHING, 10)
        engine.error = None
        assert await publish(weights, TWO) == 0.25


async def test_a_stage_waits_for_a_load_which_reads_the_memory_that_it_would_write():
    async with running() as (weights, receiver, engine):
        await stage(weights, ONE)
        engine.may_load = asyncio.Event()
        load = asyncio.create_task(weights.commit(ONE, MAKER))
        await asyncio.sleep(0)
        staging = asyncio.create_task(stage(weights, TWO))
        await asyncio.sleep(0.05)
        engine.may_load.set()
        await asyncio.gather(load, staging)
    assert receiver.events == ["staged 0.1", "loaded 0.1", "kept 0.1", "staged 0.2"]


async def test_nothing_is_loaded_while_a_stage_is_under_way():
    async with running() as (weights, receiver, _):
        await stage(weights, ONE)
        receiver.gate = threading.Semaphore(0)
        staging = asyncio.create_task(stage(weights, TWO))
        await asyncio.sleep(0.05)
        with pytest.raises(OutOfOrderError):
            await weights.commit(ONE, MAKER)
        staging.cancel()  # its caller gives up; the thread goes on
        await asyncio.gather(staging, return_exceptions=True)
        with pytest.raises(OutOfOrderError):
            await weights.commit(ONE, MAKER)
        receiver.gate.release()
        while receiver.staged.version != TWO:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert await weights.commit(TWO, MAKER) == 0.25


@pytest.mark.parametrize("blocks", [((0, 3),), ((1, 1),), ((1, 2), (0, 1)), ((0, 2), (1, 2))])
async def test_blocks_that_do_not_exist_are_refused(blocks):
    async with holding_one() as (weights, _, _):
        with pytest.raises(InputError, match="2 blocks"):
            await weights.read_back(ONE.version, blocks, 10)


@pytest.mark.parametrize("version", [TWO, ONE], ids=["another", "the same again"])
async def test_a_version_that_changes_while_it_is_read_is_no_proof(version):
    async with holding_one() as (weights, _, engine):
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await publish(weights, version)
        engine.may_read.set()
        with pytest.raises(OutOfOrderError, match="while 0.1 was read"):
            await reading


async def test_an_engine_that_does_not_answer_ends_at_the_deadline():
    async with holding_one() as (weights, _, engine):
        engine.may_read = asyncio.Event()
        with pytest.raises(DeadlineError, match="rollout-0"):
            await weights.read_back(ONE.version, EVERYTHING, 0.01)


async def test_what_waits_for_a_load_that_hangs_ends_at_its_own_deadline():
    async with holding_one(commit_timeout=0.05) as (weights, _, _):
        await weights._loading.acquire()
        for waiting in (
            stage(weights, TWO, 0.05),
            weights.commit(ONE, MAKER),
            weights.abort(ONE.version),
            weights.read_back(ONE.version, EVERYTHING, 0.05),
        ):
            with pytest.raises(DeadlineError, match="a load that is under way on rollout-0"):
                await waiting
        assert weights.live == ONE


async def test_a_stage_whose_thread_hangs_ends_for_its_caller():
    async with running(thread_timeout=0.05) as (weights, receiver, _):
        receiver.gate = threading.Semaphore(0)
        with pytest.raises(DeadlineError, match="rollout-0, staging 0.1"):
            await stage(weights, ONE, 0.05)
        receiver.gate.release()


@pytest.mark.parametrize("method", ["keep", "discard", "close"])
async def test_a_receiver_that_hangs_ends_for_its_caller(method, caplog):
    async with running(thread_timeout=0.05) as (weights, receiver, _):
        await stage(weights, ONE)
        gate = threading.Event()
        setattr(receiver, method, lambda *_: gate.wait(10))
        if method == "close":
            await weights.close()
            assert "closing its receiver: no end" in caplog.text
        else:
            with pytest.raises(DeadlineError, match=f"{method}ing a version"):
                await (
                    weights.commit(ONE, MAKER) if method == "keep" else weights.abort(ONE.version)
                )
        gate.set()


@pytest.fixture
def clock(monkeypatch):
    """clock.now in seconds, which stands still by itself."""
    clock = SimpleNamespace(now=1000.0)
    monotonic = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("services.rollout.weights.time", monotonic)
    return clock


async def test_a_replica_on_which_every_load_fails_for_long_ends(clock):
    async with running(stage_timeout=20, commit_timeout=10) as (weights, _, engine):
        engine.error = TransferError("torn")
        for seconds in (0, 29, 200):
            weights.check()  # not yet, or nothing has tried since
            clock.now += seconds
            with pytest.raises(TransferError):
                await publish(weights, ONE)
        with pytest.raises(InternalError, match="rollout-0 lives but cannot load .* 229 s.* torn"):
            weights.check()


async def test_a_replica_whose_stage_hangs_beyond_its_deadline_ends():
    async with running() as (weights, receiver, _):
        receiver.gate = threading.Semaphore(0)
        staging = asyncio.create_task(stage(weights, ONE, 0.05))
        await asyncio.sleep(0.1)
        for _ in range(NUM_OVERDUE_CHECKS):
            weights.check()
        with pytest.raises(InternalError, match="a stage hangs beyond its deadline"):
            weights.check()
        receiver.gate.release()
        await staging
