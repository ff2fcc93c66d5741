"""The weights of one replica: staged beside the live version, taken live, read back.

    stage ──▶ WeightReceiver ──▶ shadow ──▶ commit ──▶ Engine ──▶ read_back
                                   │
                                 abort

A load that is under way reads a shadow, and a stage may write to any shadow
that is not: so the two exclude each other, while everything else goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from services.rollout.engine import Engine
from trimaran.errors import DeadlineError, InputError, OutOfOrderError, TransferError
from trimaran.types import Manifest, PolicyVersion, Ranges, Source, Staged, VersionId

if TYPE_CHECKING:
    from services.weight_sync.receiver import StagedWeights, WeightReceiver

logger = logging.getLogger(__name__)


class ReplicaWeights:
    def __init__(self, name: str, engine: Engine, receiver: WeightReceiver) -> None:
        self._name = name
        self._engine = engine
        self._receiver = receiver
        self._live: PolicyVersion | None = None
        self.maker = ""
        """Stamped on the tokens of the weights that were loaded last."""
        self._manifest: Manifest | None = None
        """The live version's."""
        self._loading = asyncio.Lock()
        self._num_loads = 0
        self._stages: set[asyncio.Future[Staged]] = set()

    @property
    def live(self) -> PolicyVersion | None:
        """None until a version was loaded, and after a load that failed."""
        return self._live

    async def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        bucket_bytes: int,
        timeout: float,
        attempt: str = "",
        keep_live: bool = False,
    ) -> Staged:
        """Raises what `WeightReceiver.stage` raises; the live version stays as it was."""
        async with self._loading:
            stage = asyncio.ensure_future(
                asyncio.to_thread(
                    *(self._receiver.stage, version, manifest, sources, bucket_bytes, timeout),
                    *(attempt, keep_live),
                )
            )
            self._stages.add(stage)
        stage.add_done_callback(self._forget)
        # Shielded: the thread outlives a caller that gives up, until the next stage or an abort.
        return await asyncio.shield(stage)

    def _forget(self, stage: asyncio.Future[Staged]) -> None:
        self._stages.discard(stage)
        if not stage.cancelled():
            stage.exception()  # whoever gave it up does not ask any more: it is nobody's surprise

    async def commit(self, version: PolicyVersion, maker: str) -> float:
        """Seconds of the pause; 0 when the version is live and nothing of it waits to be loaded.

        Raises OutOfOrderError for a version that is neither staged nor live under `maker`, and TransferError when it does
        not load; nothing is live then, until a load succeeds.
        """
        # Shielded: a caller that gives up must not leave half a load behind.
        return await asyncio.shield(asyncio.ensure_future(self._commit(version, maker)))

    async def _commit(self, version: PolicyVersion, maker: str) -> float:
        async with self._loading:
            staged = self._staged(version)
            if staged is None:
                if self._live and _same(self._live, version) and self.maker == maker:
                    return 0.0
                raise OutOfOrderError(f"{version.version} is not staged on {self._name}")
            self._num_loads += 1
            try:
                pause = await self._engine.load_weights(staged.shadow, version.version)
            except TransferError:
                self._live = self._manifest = None
                raise
            self._live, self._manifest = version, staged.shadow.manifest
            self.maker = maker
            await asyncio.to_thread(self._receiver.keep, version.version)
            logger.info("version %s is live after a pause of %.3f s", version.version, pause)
            return pause

    def _staged(self, version: PolicyVersion) -> StagedWeights | None:
        if self._stages:
            return None  # a stage under way has forgotten the one before it
        staged = self._receiver.staged
        return staged if staged and _same(staged.version, version) else None

    async def abort(self, version: VersionId, attempt: str = "") -> None:
        """Interrupts that attempt's stage under way; waits for a commit, which reads the shadow."""
        async with self._loading:
            await asyncio.to_thread(self._receiver.discard, version, attempt)

    async def read_back(
        self, version: VersionId, blocks: Ranges, timeout: float
    ) -> tuple[str, ...]:
        """Digests of what the engine has loaded, one a block, in ascending order.

        Raises OutOfOrderError unless `version` is live from the first block to the last one,
        InputError for blocks that do not exist, DeadlineError.
        """
        async with self._loading:
            manifest, num_loads = self._manifest, self._num_loads
            live = self._live.version if self._live else None
        if manifest is None or live != version:
            raise OutOfOrderError(f"{self._name} holds {live}, not {version}: nothing to read back")
        _check_blocks(blocks, manifest)
        try:
            async with asyncio.timeout(timeout):
                digests = await self._engine.read_back(manifest, blocks)
        except TimeoutError:
            raise DeadlineError(
                f"{self._name}: its engine did not read back in {timeout:g} s"
            ) from None
        if self._num_loads != num_loads:
            raise OutOfOrderError(f"{self._name} took another version while {version} was read")
        return tuple(digests[number] for number in sorted(digests))

    async def close(self) -> None:
        await asyncio.to_thread(self._receiver.close)


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
