"""The receiver of a replica on several hosts: one to weight sync, a shadow on each host.

The first host stages as every replica does. The others then pull the version from its relay, and
verify each block as it lands. It is staged when all of them have it, and nothing of it where one fails.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from trimaran.clients import FollowerClient
from trimaran.errors import OutOfOrderError, TransferError, TrimaranError
from trimaran.types import (
    Manifest,
    Peer,
    PolicyVersion,
    RelaySource,
    Source,
    Staged,
    TransferLimits,
    VersionId,
)
from weights.receiving.contents import StagedWeights
from weights.receiving.receiver import WeightReceiver

logger = logging.getLogger(__name__)
T = TypeVar("T")

MARGIN_SECONDS = 2.0
"""For an answer beyond the deadline that its call has itself."""
TELL_SECONDS = 4.0
"""For what a follower does in moments."""


class SpreadReceiver:
    """What `ReplicaWeights` asks of a `WeightReceiver`, for all hosts. Methods are called in threads
    other than the event loop's.

    Example: SpreadReceiver(receiver, followers, asyncio.get_running_loop())
    """

    def __init__(
        self,
        own: WeightReceiver,
        followers: Sequence[FollowerClient],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`followers`: by their host's rank, from 1. `loop`: in which they are called."""
        self._own, self._followers, self._loop = own, followers, loop

    @property
    def peer(self) -> Peer:
        return self._own.peer

    @property
    def staged(self) -> StagedWeights | None:
        """None while a host lacks it."""
        staged = self._own.staged
        # Its paths there are known once all have answered.
        return staged if staged is not None and staged.shadow.elsewhere else None

    def stage(
        self,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str = "",
        keep_held: bool = False,
    ) -> Staged:
        """As `WeightReceiver.stage`; also raises TransferError naming a host that does not get it."""
        deadline = time.monotonic() + limits.timeout
        found = self._own.stage(version, manifest, sources, limits, attempt, keep_held)
        staged = self._own.staged
        try:
            if staged is None or (staged.version, staged.attempt) != (version, attempt):
                raise TransferError(f"version {version.version} was given up while it was staged")
            left = max(deadline - time.monotonic(), 0.001)
            bounded = TransferLimits(bucket_bytes=limits.bucket_bytes, timeout=left)
            staged.shadow.changes = None  # they lie on this host alone
            # Not where it lies in the memory of another replica, which has applied the delta.
            has_pieces = any(base_root for _, base_root in staged.given)
            asked = version, manifest, sources, bounded, attempt, has_pieces
            staged.shadow.elsewhere = tuple(
                self._on_all(lambda one: self._pull(one, *asked), left + MARGIN_SECONDS)
            )
        except BaseException:
            self.discard(version.version, attempt)
            raise
        return found

    def keep(self, version: VersionId) -> None:
        """As `WeightReceiver.keep`. A follower that does not hear of it gets the next version whole."""
        self._own.keep(version)
        self._tell(lambda one: one.keep(version))

    def discard(self, version: VersionId, attempt: str = "") -> None:
        """As `WeightReceiver.discard`. A follower that does not hear of it forgets it with the next
        stage."""
        try:
            self._own.discard(version, attempt)
        finally:
            self._tell(lambda one: one.abort(version, attempt))

    def close(self) -> None:
        self._own.close()

    async def _pull(
        self,
        one: FollowerClient,
        version: PolicyVersion,
        manifest: Manifest,
        sources: Sequence[Source],
        limits: TransferLimits,
        attempt: str,
        has_pieces: bool,
    ) -> str:
        """Returns the path of its shadow. `has_pieces`: of a delta, and so our relay."""
        peers = (self.peer,)
        # In as many parts as it came to us, each over a connection of its own.
        whole = [RelaySource(source.blocks, peers) for source in sources]
        patched = [RelaySource(source.blocks, peers, source.delta) for source in sources]
        reported = patched if has_pieces else whole
        try:
            staged, path = await one.stage(version, manifest, reported, limits, attempt)
        except OutOfOrderError:
            if reported is whole:
                raise
            # It lacks the delta's base; we have all of the version.
            staged, path = await one.stage(version, manifest, whole, limits, attempt)
        if (staged.root, staged.num_blocks) != (version.root, manifest.num_blocks):
            raise TransferError(f"{one.name}: staged {staged.num_blocks} blocks of {staged.root}")
        return path

    def _on_all(
        self, call: Callable[[FollowerClient], Coroutine[Any, Any, T]], seconds: float
    ) -> list[T]:
        """All at once, in their order. Raises TransferError naming the first that fails."""
        calls: list[Future[T]] = [
            asyncio.run_coroutine_threadsafe(call(one), self._loop) for one in self._followers
        ]
        deadline = time.monotonic() + seconds
        answers: list[T] = []
        try:
            for one, future in zip(self._followers, calls, strict=True):
                try:
                    answers.append(future.result(max(deadline - time.monotonic(), 0.0)))
                except (TrimaranError, TimeoutError) as error:
                    why = str(error) or f"no answer within {seconds:g} s"
                    raise TransferError(f"{one.name}: {why}") from error
        finally:
            for future in calls:
                future.cancel()
        return answers

    def _tell(self, call: Callable[[FollowerClient], Coroutine[Any, Any, None]]) -> None:
        """What a follower may miss."""
        try:
            self._on_all(call, TELL_SECONDS)
        except TransferError as error:
            logger.warning("%s", error)
