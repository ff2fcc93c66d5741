"""The other trainer ranks, as rank 0 calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence, Set
from typing import Any, TypeVar

from trimaran.errors import DeadlineError, OutOfOrderError, UnavailableError
from trimaran.run.directory import ProcessPlace
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc
from trimaran.wire import rpc

T = TypeVar("T")
Together = (
    trainer_pb2.JoinStepRequest | trainer_pb2.MakeVersionRequest | trainer_pb2.ExportModelRequest
)
"""Requests that all ranks take part in."""
ASKED_TWICE = frozenset({"JoinStep", "MakeVersion"})
"""Their connections may break and be made again: `TrainerRank.train`."""


class OtherRanks:
    """Rank 0's stubs of the ranks 1, 2, …; empty on the others."""

    def __init__(self, places: Sequence[ProcessPlace], trust: Trust = NO_TRUST) -> None:
        self._channels = [rpc.connect(place, trust) for place in places]
        self._stubs = [trainer_pb2_grpc.TrainerServiceStub(one) for one in self._channels]

    def __len__(self) -> int:
        return len(self._stubs)

    @property
    def _numbered(self) -> Iterator[tuple[int, trainer_pb2_grpc.TrainerServiceStub]]:
        return enumerate(self._stubs, start=1)

    async def run_everywhere(
        self, method: str, request: Together, own: Awaitable[T], timeout: float
    ) -> T:
        """This rank's own result, when all ranks have one. The first failure rises at once."""
        call = rpc.call_again if method in ASKED_TWICE else rpc.call
        calls = [call(getattr(stub, method), request, timeout) for stub in self._stubs]
        result = asyncio.ensure_future(own)
        tasks = [result, *(asyncio.ensure_future(call) for call in calls)]
        try:
            async with asyncio.timeout(timeout):
                await asyncio.gather(*tasks)
        except TimeoutError:
            raise DeadlineError(f"{method}: a trainer rank took over {timeout:g} s") from None
        finally:
            for task in tasks:
                task.cancel()
        return result.result()

    async def agree(self, request: trainer_pb2.AgreeRequest, timeout: float) -> None:
        """Raises UnavailableError where one would not take part in the step that all are about to begin."""
        calls = [self._agreed(rank, stub, request, timeout) for rank, stub in self._numbered]
        await asyncio.gather(*calls)

    async def _agreed(
        self, rank: int, stub: Any, request: trainer_pb2.AgreeRequest, timeout: float
    ) -> None:
        try:
            await rpc.call_again(stub.Agree, request, timeout)
        except OutOfOrderError as error:
            raise UnavailableError(f"trainer rank {rank} takes no part in it: {error}") from None

    async def begin_save(
        self, request: trainer_pb2.SaveCheckpointRequest, own: Awaitable[None], timeout: float
    ) -> list[BaseException | None]:
        """By rank, why it could not copy its part of a checkpoint; this one first."""
        calls = [
            self._named(rank, rpc.call(stub.SaveCheckpoint, request, timeout))
            for rank, stub in self._numbered
        ]
        answers = await asyncio.gather(own, *calls, return_exceptions=True)
        return [answer if isinstance(answer, BaseException) else None for answer in answers]

    async def written(
        self,
        request: trainer_pb2.WaitCheckpointRequest,
        ranks: Set[int],
        own: Awaitable[str],
        timeout: float,
    ) -> list[str | BaseException]:
        """The digests of the parts of these ranks and this one, or why one was not written. Waits for all, so
        that none of them writes any more."""
        calls = [
            self._named(rank, self._digest(stub, request, timeout))
            for rank, stub in self._numbered
            if rank in ranks
        ]
        return await asyncio.gather(own, *calls, return_exceptions=True)

    async def _digest(
        self, stub: Any, request: trainer_pb2.WaitCheckpointRequest, timeout: float
    ) -> str:
        return (await rpc.call_again(stub.WaitCheckpoint, request, timeout)).digest

    async def _named(self, rank: int, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except (DeadlineError, UnavailableError) as error:
            raise type(error)(f"trainer rank {rank}: {error}") from None

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
