"""Staging, loading and reading back on one replica, against a recording receiver and engine."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from services.rollout.deadlines import hold
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
from trimaran.run.device_turns import Turn
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
        """Root of the version that the next one is told to be a few changes away from."""

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


def run(body, thread_timeout=THREAD_SECONDS, check_engine=None, turn=None, **settings):
    config = WeightSyncSection(**settings)

    async def main():
        events: list[str] = []
        receiver: Any = Receiver(events)
        engine: Any = Engine(events)
        weights = ReplicaWeights(
            "rollout-0", engine, receiver, config, thread_timeout, check_engine, turn
        )
        await body(weights, receiver, engine)
        return events

    return asyncio.run(main())


async def publish(weights, version, manifest) -> float:
    await weights.stage(version, manifest, [], limits_of(10))
    return await weights.commit(version, MAKER)


def test_a_version_is_staged_loaded_and_kept():
    async def body(weights, receiver, engine):
        assert weights.live is None
        assert await publish(weights, ONE, FIRST) == 0.25
        assert weights.live == ONE
        assert await weights.commit(ONE, MAKER) == 0

    assert run(body) == ["staged 0.1", "loaded 0.1", "kept 0.1"]


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
def test_changes_alone_are_loaded_over_their_base_and_nothing_else(turns, case, loaded):
    own, _ = turns

    async def body(weights, receiver, engine):
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

    assert [event for event in run(body, turn=own) if "loaded" in event][-1] == loaded


@pytest.fixture
def turns(tmp_path):
    """The replica's turn, and the trainer's on the same device."""
    return Turn(tmp_path, (0,), "rollout-0"), Turn(tmp_path, (0,), "trainer-0")


def test_one_that_sleeps_is_woken_by_a_staged_version_alone(turns):
    own, trainer = turns

    async def body(weights, receiver, engine):
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

    events = run(body, turn=own)
    assert [event for event in events if "a" in event and "st" not in event] == [
        *("loaded 0.1", "asleep", "loaded 0.2"),
    ]


def test_a_commit_waits_for_the_trainers_turn_and_no_load_has_failed(turns):
    own, trainer = turns

    async def body(weights, receiver, engine):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        await trainer.take(0)
        for _ in range(4):
            with pytest.raises(UnavailableError, match="in use by trainer-0"):
                await weights.commit(ONE, MAKER)
        weights.check()  # it may go on
        trainer.release()
        await weights.commit(ONE, MAKER)
        assert weights.live == ONE

    run(body, turn=own, commit_timeout=0.05, stage_timeout=0.05)


def test_a_read_back_ends_where_the_engine_goes_to_sleep(turns):
    own, _ = turns

    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await weights.sleep()
        with pytest.raises(OutOfOrderError, match="sleeps while the trainer"):
            await reading

    run(body, turn=own)


def test_one_sleeps_after_a_commit_that_took_as_long_as_it_may(turns, monkeypatch):
    own, trainer = turns
    waits: list[float] = []

    def noted(lock, seconds, what):
        waits.append(seconds)
        return hold(lock, seconds, what)

    monkeypatch.setattr("services.rollout.weights.hold", noted)

    async def body(weights, receiver, engine):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        await trainer.take(0)
        engine.may_load = asyncio.Event()
        commit = asyncio.create_task(weights.commit(ONE, MAKER))
        await asyncio.sleep(0.01)
        sleep = asyncio.create_task(weights.sleep())
        await asyncio.sleep(0.01)
        trainer.release()
        engine.may_load.set()
        await asyncio.gather(commit, sleep)
        assert weights.is_asleep
        assert waits[-1] > 60.0, "the commit may wait for its turn, and load, for so long each"
        weights.check()

    run(body, turn=own, commit_timeout=30)


def test_one_that_cannot_even_begin_to_sleep_ends(turns):
    own, _ = turns

    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        weights._thread_timeout = 0.05  # a busy machine takes longer for a thread
        async with weights._loading:
            with pytest.raises(DeadlineError):
                await weights.sleep()
        with pytest.raises(InternalError, match="did not leave its devices to the trainer"):
            weights.check()

    run(body, turn=own, commit_timeout=0.05)


def test_an_engine_that_stays_awake_ends_its_replica_and_so_its_turn(turns):
    own, _ = turns

    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.sleeps = False
        with pytest.raises(RuntimeError):
            await weights.sleep()
        assert weights.live is None
        with pytest.raises(InternalError, match="did not leave its devices to the trainer"):
            weights.check()
        assert own.is_taken, "until its process has ended"

    run(body, turn=own)


def test_one_with_devices_of_its_own_refuses_to_sleep():
    async def body(weights, receiver, engine):
        with pytest.raises(InputError, match="devices of its own"):
            await weights.sleep()

    run(body)


@pytest.mark.parametrize(("answers", "checks"), [([True], 1), ([False, True], 2)])
def test_an_engine_is_checked_until_it_is_known_before_a_version_is_live(answers, checks):
    checked = []

    async def body(weights, receiver, engine):
        async def check():
            checked.append((engine.loaded, weights.live))
            return answers[len(checked) - 1]

        weights._check_engine = check
        await publish(weights, ONE, FIRST)
        await publish(weights, TWO, SECOND)
        await publish(weights, ONE, FIRST)
        weights.check()

    run(body)
    assert [loaded for loaded, _ in checked] == [FIRST, SECOND][:checks]
    assert checked[0] == (FIRST, None)


def test_an_unfit_engine_ends_its_replica_and_never_serves():
    async def unfit():
        raise InputError("its log-probabilities are raw")

    async def body(weights, receiver, engine):
        with pytest.raises(InputError, match="are raw"):
            await publish(weights, ONE, FIRST)
        assert weights.live is None
        with pytest.raises(InputError, match="its log-probabilities are raw"):
            weights.check()

    run(body, check_engine=unfit)


def test_a_check_that_does_not_end_fails_the_load_which_may_be_tried_again():
    hangs = True

    async def check():
        if hangs:
            await asyncio.Event().wait()
        return True

    async def body(weights, receiver, engine):
        nonlocal hangs
        with pytest.raises(TransferError, match="no end after"):
            await publish(weights, ONE, FIRST)
        weights.check()
        hangs = False
        await publish(weights, ONE, FIRST)
        assert weights.live == ONE

    run(body, check_engine=check, commit_timeout=0.05)


def test_a_live_version_that_is_staged_anew_is_loaded_anew():
    """A replica whose loaded weights went wrong catches up with the version that it holds."""

    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        assert await publish(weights, ONE, FIRST) == 0.25

    assert run(body).count("loaded 0.1") == 2


def test_what_is_not_staged_is_not_loaded():
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        with pytest.raises(OutOfOrderError, match="0.2 is not staged on rollout-0"):
            await weights.commit(TWO, MAKER)
        await weights.stage(policy(2, FIRST), FIRST, [], limits_of(10))
        with pytest.raises(OutOfOrderError):
            await weights.commit(TWO, MAKER)  # of another root
        assert weights.live == ONE

    run(body)


def test_a_load_that_fails_leaves_nothing_live():
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.fails = True
        with pytest.raises(TransferError):
            await publish(weights, TWO, SECOND)
        assert weights.live is None
        with pytest.raises(OutOfOrderError, match="holds None"):
            await weights.read_back(ONE.version, EVERYTHING, 10)
        engine.fails = False
        assert await publish(weights, TWO, SECOND) == 0.25

    run(body)


def test_a_stage_waits_for_a_load_which_reads_the_memory_that_it_would_write():
    async def body(weights, receiver, engine):
        await weights.stage(ONE, FIRST, [], limits_of(10))
        engine.may_load = asyncio.Event()
        load = asyncio.create_task(weights.commit(ONE, MAKER))
        await asyncio.sleep(0)
        stage = asyncio.create_task(weights.stage(TWO, SECOND, [], limits_of(10)))
        await asyncio.sleep(0.05)
        engine.may_load.set()
        await asyncio.gather(load, stage)

    assert run(body) == ["staged 0.1", "loaded 0.1", "kept 0.1", "staged 0.2"]


def test_nothing_is_loaded_while_a_stage_is_under_way():
    async def body(weights, receiver, engine):
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

    run(body)


def test_digests_come_in_the_order_of_the_blocks():
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        assert await weights.read_back(ONE.version, EVERYTHING, 10) == ("a" * 32, "f" * 32)

    run(body)


@pytest.mark.parametrize("blocks", [((0, 3),), ((1, 1),), ((1, 2), (0, 1)), ((0, 2), (1, 2))])
def test_blocks_that_do_not_exist_are_refused(blocks):
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        with pytest.raises(InputError, match="2 blocks"):
            await weights.read_back(ONE.version, blocks, 10)

    run(body)


def test_another_version_than_the_live_one_is_not_read_back():
    async def body(weights, receiver, engine):
        with pytest.raises(OutOfOrderError):
            await weights.read_back(ONE.version, EVERYTHING, 10)
        await publish(weights, ONE, FIRST)
        with pytest.raises(OutOfOrderError, match="holds 0.1, not 0.2"):
            await weights.read_back(TWO.version, EVERYTHING, 10)

    run(body)


@pytest.mark.parametrize(("version", "manifest"), [(TWO, SECOND), (ONE, FIRST)])
def test_a_version_that_changes_while_it_is_read_is_no_proof(version, manifest):
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        reading = asyncio.create_task(weights.read_back(ONE.version, EVERYTHING, 10))
        await asyncio.sleep(0.01)
        await publish(weights, version, manifest)
        engine.may_read.set()
        with pytest.raises(OutOfOrderError, match="while 0.1 was read"):
            await reading

    run(body)


def test_an_engine_that_does_not_answer_ends_at_the_deadline():
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.may_read = asyncio.Event()
        with pytest.raises(DeadlineError, match="rollout-0"):
            await weights.read_back(ONE.version, EVERYTHING, 0.01)

    run(body)


def test_a_load_that_does_not_end_fails_at_the_commits_deadline_and_leaves_nothing_live():
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)
        engine.may_load = asyncio.Event()
        await weights.stage(TWO, SECOND, [], limits_of(10))
        with pytest.raises(TransferError, match="rollout-0, loading 0.2: no end after 0.05 s"):
            await weights.commit(TWO, MAKER)
        assert weights.live is None
        engine.may_load.set()
        assert await publish(weights, TWO, SECOND) == 0.25

    run(body, commit_timeout=0.05)


@pytest.mark.parametrize("failure", [RuntimeError("unforeseen"), asyncio.CancelledError()])
def test_whatever_cuts_a_load_off_leaves_nothing_live(failure):
    async def body(weights, receiver, engine):
        await publish(weights, ONE, FIRST)

        async def load_weights(shadow, version):
            raise failure

        engine.load_weights = load_weights
        await weights.stage(TWO, SECOND, [], limits_of(10))
        with pytest.raises(type(failure)):
            await weights.commit(TWO, MAKER)
        assert weights.live is None

    run(body)


def test_what_waits_for_a_load_that_hangs_ends_at_its_own_deadline():
    async def body(weights, receiver, engine):
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

    run(body, commit_timeout=0.05)


def test_a_stage_whose_thread_hangs_ends_for_its_caller():
    async def body(weights, receiver, engine):
        receiver.gate = threading.Semaphore(0)
        with pytest.raises(DeadlineError, match="rollout-0, staging 0.1"):
            await weights.stage(ONE, FIRST, [], limits_of(0.05))
        receiver.gate.release()

    run(body, thread_timeout=0.05)


@pytest.mark.parametrize("method", ["keep", "discard", "close"])
def test_a_receiver_that_hangs_ends_for_its_caller(method, caplog):
    async def body(weights, receiver, engine):
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

    run(body, thread_timeout=0.05)


@pytest.fixture
def clock(monkeypatch):
    """clock.now in seconds, which stands still by itself."""
    clock = SimpleNamespace(now=1000.0)
    monotonic = SimpleNamespace(monotonic=lambda: clock.now)
    monkeypatch.setattr("services.rollout.weights.time", monotonic)
    return clock


def test_a_replica_on_which_every_load_fails_for_long_ends(clock):
    async def body(weights, receiver, engine):
        engine.fails = True
        for seconds in (0, 29, 200):
            weights.check()  # not yet, or nobody has tried since
            clock.now += seconds
            with pytest.raises(TransferError):
                await publish(weights, ONE, FIRST)
        with pytest.raises(InternalError, match="rollout-0 lives but cannot load .* 229 s.* torn"):
            weights.check()

    run(body, stage_timeout=20, commit_timeout=10)


def test_a_replica_that_loads_again_stays(clock):
    async def body(weights, receiver, engine):
        for engine.fails in (True, False, True):
            with suppress(TransferError):
                await publish(weights, ONE, FIRST)
            clock.now += 1000
            weights.check()

    run(body)


def test_a_replica_whose_stage_hangs_beyond_its_deadline_ends():
    async def body(weights, receiver, engine):
        receiver.gate = threading.Semaphore(0)
        stage = asyncio.create_task(weights.stage(ONE, FIRST, [], limits_of(0.05)))
        await asyncio.sleep(0.1)
        for _ in range(NUM_OVERDUE_CHECKS):
            weights.check()
        with pytest.raises(InternalError, match="a stage hangs beyond its deadline"):
            weights.check()
        receiver.gate.release()
        await stage

    run(body)


def test_a_stage_that_ends_late_is_no_reason_to_end():
    async def body(weights, receiver, engine):
        receiver.gate = threading.Semaphore(0)
        for _ in range(2):
            stage = asyncio.create_task(weights.stage(ONE, FIRST, [], limits_of(0.05)))
            await asyncio.sleep(0.1)
            for _ in range(NUM_OVERDUE_CHECKS):
                weights.check()
            receiver.gate.release()
            await stage
            weights.check()

    run(body)
