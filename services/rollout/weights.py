"""The weights of one replica: staged beside the live version, taken live, read back.

    stage ──▶ WeightReceiver ──▶ shadow ──▶ commit ──▶ Engine ──▶ read_back
                                   │
                                 abort

A load that is under way reads a shadow, and a stage may write to any shadow
that is not: so the two exclude each other, while everything else goes on.

Where the trainer has the same devices (`run.pools: colocated`), `sleep` leaves them to it, and a commit
takes them back:

    sleep ──▶ Engine.sleep ──▶ the turn is given up … commit ──▶ the turn is taken ──▶ Engine

Every wait here ends. What that leaves behind may be beyond repair: an engine that
never answers again, a thread that hangs in a system call. `check` finds such a
replica, which lives but can load nothing, so that its process ends and is started
again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeVar

from services.rollout.deadlines import hold
from services.rollout.engine import Engine
from trimaran.config import WeightSyncSection
from trimaran.errors import (
    DeadlineError,
    InputError,
    InternalError,
    OutOfOrderError,
    TransferError,
    TrimaranError,
    UnavailableError,
)
from trimaran.host.call_waits import within
from trimaran.run.device_turns import DeviceTurn
from trimaran.types import (
    Manifest,
    PolicyVersion,
    Ranges,
    Source,
    Staged,
    TransferLimits,
    VersionId,
)
from weights.version.manifest import narrow

if TYPE_CHECKING:
    from services.rollout.spread import SpreadReceiver
    from weights.receiving.contents import StagedWeights
    from weights.receiving.receiver import WeightReceiver

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

THREAD_SECONDS = 15.0
"""For what the receiver does in moments, or ends by itself after ten seconds."""
MIN_FAILED_LOADS = 3
"""In a row, before it is the replica that is to blame."""
NUM_OVERDUE_CHECKS = 30
"""Checks in a row, a second each, that find a stage running beyond its own deadline. They are
counted, not timed: in a process that stood still itself, everything is late for a moment."""


class ReplicaWeights:
    """The version that a replica's engine has loaded, and the one that it stages.

    Example:
        await weights.stage(version, manifest, sources, limits)
        await weights.commit(version, maker)  # from here on, `weights.live` is this version
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        receiver: WeightReceiver | SpreadReceiver,
        config: WeightSyncSection,
        thread_timeout: float = THREAD_SECONDS,
        check_engine: Callable[[], Awaitable[bool]] | None = None,
        turn: DeviceTurn | None = None,
    ) -> None:
        """`turn`: with the trainer, on devices that both use; the engine sleeps already.
        `check_engine`: awaited when the engine has loaded a version that is not in use yet, until it
        answers True. An InputError says that the engine is unfit, and the replica ends."""
        self._name = name
        self._check_engine = check_engine
        self._turn = turn
        self._unfit: InputError | None = None
        self._thread_timeout = thread_timeout
        self._engine = engine
        self._receiver = receiver
        self._commit_timeout = config.commit_timeout
        self._patience = config.stage_timeout + config.commit_timeout
        self._live: PolicyVersion | None = None
        self.maker = ""
        """Stamped on the tokens of the weights that were loaded last."""
        self.last_pause: float | None = None
        """Seconds for which generation paused for them; None before there were any."""
        self._manifest: Manifest | None = None
        """The live version's."""
        self._loading = asyncio.Lock()
        self._num_loads = 0
        self._num_failed = 0
        """Loads in a row."""
        self._failing_since: float | None = None
        """When the first load failed of those that have failed since one succeeded."""
        self._unloadable = ""
        """Why this process will not load any more."""
        self._readings: set[asyncio.Future[dict[int, str]]] = set()
        """Read-backs of the engine that are under way."""
        self._stages: dict[asyncio.Future[Staged], float] = {}
        """Under way, with their deadlines."""
        self._num_overdue = 0

    @property
    def live(self) -> PolicyVersion | None:
        """None until a version was loaded, and after a load that failed."""
        return self._live

    def check(self) -> None:
        """Call it once a second. Raises InternalError when nothing can be loaded any more, and
        InputError when the engine is unfit.

        That is so when loads keep failing: one fails, and since the first that did there was time
        for a whole further try. And when a stage runs on beyond its deadline: its thread hangs, and
        no other stage can begin.
        """
        if self._unfit:
            raise self._unfit
        now = time.monotonic()
        overdue = any(now > deadline for deadline in self._stages.values())
        self._num_overdue = self._num_overdue + 1 if overdue else 0
        if self._num_overdue > NUM_OVERDUE_CHECKS:
            self._unloadable = "a stage hangs beyond its deadline and keeps every other one off"
        if self._unloadable:
            raise InternalError(
                f"{self._name} lives but cannot load weights: {self._unloadable}; it ends, to be"
                " started again"
            )

    async def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str = "",
        keep_live: bool = False,
    ) -> Staged:
        """Raises what `WeightReceiver.stage` raises, and DeadlineError when a load or the stage
        itself does not end; the live version stays as it was."""
        async with self._hold(limits.timeout):
            stage = asyncio.ensure_future(
                asyncio.to_thread(
                    *(self._receiver.stage, version, manifest, sources, limits),
                    *(attempt, keep_live),
                )
            )
            self._stages[stage] = time.monotonic() + limits.timeout
        stage.add_done_callback(self._forget)
        # Shielded: the thread outlives a caller that gives up, until the next stage or an abort.
        async with within(
            limits.timeout + self._thread_timeout, f"{self._name}, staging {version.version}"
        ):
            return await asyncio.shield(stage)

    def _forget(self, stage: asyncio.Future[Staged]) -> None:
        del self._stages[stage]
        _retrieve(stage)

    async def commit(self, version: PolicyVersion, maker: str) -> float:
        """Seconds of the pause; 0 when the version is live and nothing of it waits to be loaded.

        Raises OutOfOrderError for a version that is neither staged nor live under `maker`, and
        TransferError when it does not load within `weight_sync.commit_timeout`; nothing is live then, until a load succeeds.
        """
        # Shielded: a caller that gives up must not leave half a load behind.
        commit = asyncio.ensure_future(self._commit(version, maker))
        commit.add_done_callback(_retrieve)
        return await asyncio.shield(commit)

    async def _commit(self, version: PolicyVersion, maker: str) -> float:
        async with self._hold(self._commit_timeout):
            staged = self._staged(version)
            if staged is None:
                is_loaded = self._live and _same(self._live, version) and not self.is_asleep
                if is_loaded and self.maker == maker:
                    return 0.0
                raise OutOfOrderError(f"{version.version} is not staged on {self._name}")
            if not self._has_base(staged, maker):
                staged.shadow.changes = None
            await self._take_turn()
            self._num_loads += 1
            pause = await self._load(staged, version)
            self._live, self._manifest = version, staged.shadow.manifest
            self.maker, self.last_pause = maker, pause
            self._failing_since, self._num_failed = None, 0
            await self._in_thread("keeping a version", self._receiver.keep, version.version)
            logger.info("version %s is live after a pause of %.3f s", version.version, pause)
            return pause

    def _has_base(self, staged: StagedWeights, maker: str) -> bool:
        """Whether the engine has loaded what the changes are against. Under another maker it had a
        wrong block, which the changes need not contain."""
        live, changes = self._live, staged.shadow.changes
        if live is None or changes is None or self.is_asleep or maker != self.maker:
            return False
        return live.root == changes.base_root

    async def _take_turn(self) -> None:
        """That the trainer has the devices is no failure of a load."""
        if self._turn:
            try:
                await self._turn.take(self._commit_timeout)
            except DeadlineError as error:
                raise UnavailableError(str(error)) from error

    async def sleep(self) -> None:
        """Leaves the devices to the trainer until the next commit. Nothing where it sleeps already.

        Raises InputError in separate pools. After a failure the replica ends, and its devices are free.
        """
        if self._turn is None:
            raise InputError(f"{self._name} has devices of its own (run.pools: separate)")
        sleeping = asyncio.ensure_future(self._sleep(self._turn))
        sleeping.add_done_callback(_retrieve)
        await asyncio.shield(sleeping)

    async def _sleep(self, turn: DeviceTurn) -> None:
        # A commit under way waits for its turn, loads, and keeps.
        longest = 2 * self._commit_timeout + self._thread_timeout
        try:
            async with self._hold(longest):
                if self.is_asleep:
                    return
                async with within(self._commit_timeout, f"{self._name}, going to sleep"):
                    await self._end_readings()
                    await self._engine.sleep()
                turn.release()
        except BaseException as error:
            self.forget()
            self._unloadable = f"it did not leave its devices to the trainer ({error})"
            raise

    async def _end_readings(self) -> None:
        for reading in (readings := [*self._readings]):
            reading.cancel()
        await asyncio.gather(*readings, return_exceptions=True)

    @property
    def is_asleep(self) -> bool:
        """The trainer may be on the devices."""
        return self._turn is not None and not self._turn.is_taken

    def forget(self) -> None:
        """Forget the live version. A sleeping replica that is asked for tokens calls it: its next
        heartbeat then makes weight sync, which takes it for awake, load the version again."""
        self._live = self._manifest = None

    async def _load(self, staged: StagedWeights, version: PolicyVersion) -> float:
        try:
            async with within(self._commit_timeout, f"{self._name}, loading {version.version}"):
                pause = await self._engine.load_weights(staged.shadow, version.version)
                await self._check_until_known()
                return pause
        except BaseException as error:
            # Also when it is cut off: what the engine holds then is unknown.
            self._live = self._manifest = None
            what = "is not taken" if self._unfit else "did not load"
            logger.warning("version %s %s: %s", version.version, what, error)
            self._note_failure(error)
            if isinstance(error, DeadlineError):
                raise TransferError(str(error)) from error
            raise

    async def _check_until_known(self) -> None:
        if self._check_engine is None:
            return
        try:
            is_known = await self._check_engine()
        except InputError as error:
            self._unfit = error
            raise
        if is_known:
            self._check_engine = None

    def _note_failure(self, error: BaseException) -> None:
        now = time.monotonic()
        self._num_failed += 1
        if self._failing_since is None:
            self._failing_since = now
        elif now - self._failing_since > self._patience and self._num_failed >= MIN_FAILED_LOADS:
            self._unloadable = (
                f"{self._num_failed} loads in {now - self._failing_since:.0f} s have all failed,"
                f" the last one with {str(error) or type(error).__name__}"
            )

    def _staged(self, version: PolicyVersion) -> StagedWeights | None:
        if self._stages:
            return None  # a stage under way has forgotten the one before it
        staged = self._receiver.staged
        return staged if staged and _same(staged.version, version) else None

    async def abort(self, version: VersionId, attempt: str = "") -> None:
        """Interrupts that attempt's stage under way; waits for a commit, which reads the shadow."""
        async with self._hold(self._commit_timeout):
            await self._in_thread("discarding a version", self._receiver.discard, version, attempt)

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        """Digests of what the engine has loaded, one a block, in ascending order.

        Raises OutOfOrderError unless `version` is live from the first block to the last one,
        InputError for blocks that do not exist, DeadlineError.
        """
        async with self._hold(timeout):
            manifest, num_loads = self._manifest, self._num_loads
            live = self._live.version if self._live else None
        if self.is_asleep:
            raise self._asleep_error()
        if manifest is None or live != version:
            raise OutOfOrderError(f"{self._name} holds {live}, not {version}: nothing to read back")
        _check_blocks(blocks, manifest)
        async with within(timeout, f"{self._name}, reading back {version}"):
            digests = await self._read_awake(*narrow(manifest, blocks))
        if self._num_loads != num_loads:
            raise OutOfOrderError(f"{self._name} took another version while {version} was read")
        return tuple(digests[number] for number in sorted(digests))

    async def _read_awake(self, manifest: Manifest, blocks: Ranges) -> dict[int, str]:
        """Ends where the engine goes to sleep: what it would read then is nothing of its own."""
        reading = asyncio.ensure_future(self._engine.read_back(manifest, blocks))
        self._readings.add(reading)
        reading.add_done_callback(self._readings.discard)
        try:
            return await reading
        except asyncio.CancelledError:
            ours = asyncio.current_task()
            if ours and not ours.cancelling():  # but the reading was
                raise self._asleep_error() from None
            raise

    def _asleep_error(self) -> OutOfOrderError:
        return OutOfOrderError(
            f"{self._name} sleeps while the trainer has its devices: it is read back after its next version"
        )

    def _hold(self, seconds: float) -> AbstractAsyncContextManager[None]:
        return hold(self._loading, seconds, f"a load that is under way on {self._name}")

    async def _in_thread(
        self, what: str, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        async with within(self._thread_timeout, f"{self._name}, {what}"):
            return await asyncio.to_thread(function, *arguments)

    async def close(self) -> None:
        """A receiver that does not end is left behind: the process ends anyway."""
        try:
            await self._in_thread("closing its receiver", self._receiver.close)
        except TrimaranError as error:
            logger.warning("%s", error)


def _retrieve(task: asyncio.Future[Any]) -> None:
    """The error of a task that was given up is not asked for any more; it is no surprise."""
    if not task.cancelled():
        task.exception()


def _same(left: PolicyVersion, right: PolicyVersion) -> bool:
    return (left.version, left.root) == (right.version, right.root)


def _check_blocks(blocks: Ranges, manifest: Manifest) -> None:
    end_before = 0
    for first, end in blocks:
        if not end_before <= first < end <= manifest.num_blocks:
            raise InputError(
                f"blocks {first} to {end}: ranges must ascend, and the live version has"
                f" {manifest.num_blocks} blocks"
            )
        end_before = end
