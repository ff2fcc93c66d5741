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


def make_manifest(letter: str):
    tensor = TensorInfo("w", "F32", (4,), 0, (2,), (letter * 32, "f" * 32))
    return build_manifest([tensor])


def policy(step: int, manifest) -> PolicyVersion:
    return PolicyVersion("run", VersionId(0, step), manifest.root)


FIRST, SECOND = make_manifest("a"), make_manifest("b")
MAKER = "rollout-0"
ONE, TWO = policy(1, FIRST), policy(2, SECOND)
EVERYTHING = ((0, 2),)


def limits_of(timeout: float) -> TransferLimits:
    return TransferLimits(bucket_bytes=1, timeout=timeout)


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
        self.events, self.fails = events, False
        self.sleeps = True
        self.loaded: Any = None
        self.may_load: asyncio.Event | None = None
        self.may_read: asyncio.Event | None = None

    async def load_weights(self, shadow, version):
        if self.may_load:
            await self.may_load.wait()
        how = ", changes alone" if shadow.changes else ""
        self.events.append(f"loaded {version}{how}")
        if self.fails:
            raise TransferError("torn")
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
    weights = ReplicaWeights(
        "rollout-0", engine, receiver, config, thread_timeout, check_engine, turn
    )
    yield weights, receiver, engine


async def publish(weights, version, manifest) -> float:
    await weights.stage(version, manifest, [], limits_of(10))
    return await weights.commit(version, MAKER)


async def test_a_version_is_staged_loaded_and_kept():
    async with running() as (weights, receiver, _):
        assert weights.live is None
        assert await publish(weights, ONE, FIRST) == 0.25
        assert weights.live == ONE
        assert await weights.commit(ONE, MAKER) == 0
    assert receiver.events == ["staged 0.1", "loaded 0.1", "kept 0.1"]


@pytest.mark.parametrize(
    ("case", "loaded"),
    [
        ("the base is live", "loaded 0.2, changes alone"),
        ("another base", "loaded 0.2"),
        ("a wrong block was found", "loaded 0.2"),
        ("the last load failed", "loaded 0.2"),
        ("asleep", "loaded 0.2"),
    ],
)
async def test_changes_alone_are_loaded_over_their_base_and_nothing_else(turns, case, loaded):
    own, _ = turns

    async with running(turn=own) as (weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        maker = MAKER
        receiver.base = FIRST.root
        if case == "another base":
            receiver.base = SECOND.root
        elif case == "a wrong block was found":
            maker = f"{MAKER}~1"
        elif case == "the last load failed":
            engine.fails = True
            with pytest.raises(TransferError, match="torn"):
                await publish(weights, TWO, SECOND)
            engine.fails = False
        elif case == "asleep":
            await weights.sleep()
        await weights.stage(TWO, SECOND, [], limits_of(10))
        await weights.commit(TWO, maker)
    assert [event for event in receiver.events if "loaded" in event][-1] == loaded


@pytest.fixture
def turns(tmp_path):
    """The replica's turn, and the trainer's on the same device."""
    return DeviceTurn(tmp_path, (0,), "rollout-0"), DeviceTurn(tmp_path, (0,), "trainer-0")


async def test_one_that_sleeps_is_woken_by_a_staged_version_alone(turns):
    own, trainer = turns

    async with running(turn=own) as (weights, receiver, _):
        assert weights.is_asleep  # since its start
        await publish(weights, ONE, FIRST)
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
        await publish(weights, TWO, SECOND)
        assert (weights.live, weights.is_asleep) == (TWO, False)
    events = receiver.events
    assert [event for event in events if "a" in event and "st" not in event] == [
        *("loaded 0.1", "asleep", "loaded 0.2"),
    ]


async def test_a_commit_waits_for_the_trainers_turn_and_no_load_has_failed(turns):
    own, trainer = turns

    async with running(turn=own, commit_timeout=0.05, stage_timeout=0.05) as (
        weights,
        _receiver,
        _engine,
    ):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        await trainer.take(0)
        for _ in range(4):
            with pytest.raises(UnavailableError, match="in use by trainer-0"):
                await weights.commit(ONE, MAKER)
        weights.check()  # it may go on
        trainer.release()
        await weights.commit(ONE, MAKER)
        assert weights.live == ONE


async def test_a_read_back_ends_where_the_engine_goes_to_sleep(turns):
    own, _ = turns

    async with running(turn=own) as (weights, _, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await weights.sleep()
        with pytest.raises(OutOfOrderError, match="sleeps while the trainer"):
            await reading


async def test_one_that_cannot_even_begin_to_sleep_ends(turns):
    own, _ = turns

    async with running(turn=own, commit_timeout=0.05) as (weights, _, _):
        await publish(weights, ONE, FIRST)
        weights._thread_timeout = 0.05  # a busy machine takes longer for a thread
        async with weights._loading:
            with pytest.raises(DeadlineError):
                await weights.sleep()
        with pytest.raises(InternalError, match="did not leave its devices to the trainer"):
            weights.check()


async def test_an_engine_that_stays_awake_ends_its_replica_and_so_its_turn(turns):
    own, _ = turns

    async with running(turn=own) as (weights, _, engine):
        await publish(weights, ONE, FIRST)
        engine.sleeps = False
        with pytest.raises(RuntimeError):
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
    async with running() as (weights, _, engine):

        async def check():
            checked.append((engine.loaded, weights.live))
            return answers[len(checked) - 1]

        weights._check_engine = check
        await publish(weights, ONE, FIRST)
        await publish(weights, TWO, SECOND)
        await publish(weights, ONE, FIRST)
        weights.check()
    assert [loaded for loaded, _ in checked] == [FIRST, SECOND][:checks]
    assert checked[0] == (FIRST, None)


async def test_an_unfit_engine_ends_its_replica_and_never_serves():
    async def unfit():
        raise InputError("its log-probabilities are raw")

    async with running(check_engine=unfit) as (weights, _, _):
        with pytest.raises(InputError, match="are raw"):
            await publish(weights, ONE, FIRST)
        assert weights.live is None
        with pytest.raises(InputError, match="its log-probabilities are raw"):
            weights.check()


async def test_a_check_that_does_not_end_fails_the_load_which_may_be_tried_again():
    ends = asyncio.Event()

    async def check():
        await ends.wait()
        return True

    async with running(check_engine=check, commit_timeout=0.05) as (weights, _, _):
        with pytest.raises(TransferError, match="no end after"):
            await publish(weights, ONE, FIRST)
        weights.check()
        ends.set()
        await publish(weights, ONE, FIRST)
        assert weights.live == ONE


async def test_a_live_version_that_is_staged_again_is_loaded_again():
    """A replica whose loaded weights went wrong catches up with the version that it holds."""

    async with running() as (weights, receiver, _):
        await publish(weights, ONE, FIRST)
        assert await publish(weights, ONE, FIRST) == 0.25
    assert receiver.events.count("loaded 0.1") == 2


async def test_what_is_not_staged_is_not_loaded():
    async with running() as (weights, _, _):
        await publish(weights, ONE, FIRST)
        with pytest.raises(OutOfOrderError, match="0.2 is not staged on rollout-0"):
            await weights.commit(TWO, MAKER)
        await weights.stage(policy(2, FIRST), FIRST, [], limits_of(10))
        with pytest.raises(OutOfOrderError):
            await weights.commit(TWO, MAKER)  # of another root
        assert weights.live == ONE


async def test_a_load_that_fails_leaves_nothing_live():
    async with running() as (weights, _, engine):
        await publish(weights, ONE, FIRST)
        engine.fails = True
        with pytest.raises(TransferError):
            await publish(weights, TWO, SECOND)
        assert weights.live is None
        with pytest.raises(OutOfOrderError, match="holds None"):
            await weights.read_back(ONE.version, EVERYTHING, 10)
        engine.fails = False
        assert await publish(weights, TWO, SECOND) == 0.25


async def test_a_stage_waits_for_a_load_which_reads_the_memory_that_it_would_write():
    async with running() as (weights, receiver, engine):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        engine.may_load = asyncio.Event()
        load = asyncio.create_task(weights.commit(ONE, MAKER))
        await asyncio.sleep(0)
        stage = asyncio.create_task(weights.stage(TWO, SECOND, [], limits_of(10)))
        await asyncio.sleep(0.05)
        engine.may_load.set()
        await asyncio.gather(load, stage)
    assert receiver.events == ["staged 0.1", "loaded 0.1", "kept 0.1", "staged 0.2"]


async def test_nothing_is_loaded_while_a_stage_is_under_way():
    async with running() as (weights, receiver, _):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        receiver.gate = threading.Semaphore(0)
        stage = asyncio.create_task(weights.stage(TWO, SECOND, [], limits_of(10)))
        await asyncio.sleep(0.05)
        with pytest.raises(OutOfOrderError):
            await weights.commit(ONE, MAKER)
        stage.cancel()  # its caller gives up; the thread goes on
        await asyncio.gather(stage, return_exceptions=True)
        with pytest.raises(OutOfOrderError):
            await weights.commit(ONE, MAKER)
        receiver.gate.release()
        while receiver.staged.version != TWO:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert await weights.commit(TWO, MAKER) == 0.25


async def test_digests_come_in_the_order_of_the_blocks():
    async with running() as (weights, _, _):
        await publish(weights, ONE, FIRST)
        assert await weights.read_back(ONE.version, EVERYTHING, 10) == ("a" * 32, "f" * 32)


@pytest.mark.parametrize("blocks", [((0, 3),), ((1, 1),), ((1, 2), (0, 1)), ((0, 2), (1, 2))])
async def test_blocks_that_do_not_exist_are_refused(blocks):
    async with running() as (weights, _, _):
        await publish(weights, ONE, FIRST)
        with pytest.raises(InputError, match="2 blocks"):
            await weights.read_back(ONE.version, blocks, 10)


@pytest.mark.parametrize(("version", "manifest"), [(TWO, SECOND), (ONE, FIRST)])
async def test_a_version_that_changes_while_it_is_read_is_no_proof(version, manifest):
    async with running() as (weights, _, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await publish(weights, version, manifest)
        engine.may_read.set()
        with pytest.raises(OutOfOrderError, match="while 0.1 was read"):
            await reading


async def test_an_engine_that_does_not_answer_ends_at_the_deadline():
    async with running() as (weights, _, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        with pytest.raises(DeadlineError, match="rollout-0"):
            await weights.read_back(ONE.version, EVERYTHING, 0.01)


@pytest.mark.parametrize("failure", [RuntimeError("unforeseen"), asyncio.CancelledError()])
async def test_whatever_cuts_a_load_off_leaves_nothing_live(failure):
    async with running() as (weights, _, engine):
        await publish(weights, ONE, FIRST)

        async def load_weights(shadow, version):
            raise failure

        engine.load_weights = load_weights
        await weights.stage(TWO, SECOND, [], limits_of(10))
        with pytest.raises(type(failure)):
            await weights.commit(TWO, MAKER)
        assert weights.live is None


async def test_what_waits_for_a_load_that_hangs_ends_at_its_own_deadline():
    async with running(commit_timeout=0.05) as (weights, _, _):
        await publish(weights, ONE, FIRST)
        await weights._loading.acquire()
        for waiting in (
            weights.stage(TWO, SECOND, [], limits_of(0.05)),
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
            await weights.stage(ONE, FIRST, [], limits_of(0.05))
        receiver.gate.release()


@pytest.mark.parametrize("method", ["keep", "discard", "close"])
async def test_a_receiver_that_hangs_ends_for_its_caller(method, caplog):
    async with running(thread_timeout=0.05) as (weights, receiver, _):
        await weights.stage(ONE, FIRST, [], limits_of(10))
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
        engine.fails = True
        for seconds in (0, 29, 200):
            weights.check()  # not yet, or nothing has tried since
            clock.now += seconds
            with pytest.raises(TransferError):
                await publish(weights, ONE, FIRST)
        with pytest.raises(InternalError, match="rollout-0 lives but cannot load .* 229 s.* torn"):
            weights.check()


async def test_a_replica_whose_stage_hangs_beyond_its_deadline_ends():
    async with running() as (weights, receiver, _):
        receiver.gate = threading.Semaphore(0)
        stage = asyncio.create_task(weights.stage(ONE, FIRST, [], limits_of(0.05)))
        await asyncio.sleep(0.1)
        for _ in range(NUM_OVERDUE_CHECKS):
            weights.check()
        with pytest.raises(InternalError, match="a stage hangs beyond its deadline"):
            weights.check()
        receiver.gate.release()
        await stage
