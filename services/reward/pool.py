"""Rules and functions in processes that can be killed: symbolic checkers hang, and threads cannot
be stopped."""

from __future__ import annotations

from collections.abc import Sequence

from services.reward.outcome import Outcome
from services.reward.terms import FunctionSpec
from trimaran.rewards import Sample


class Pool:
    """`num_workers` processes. Use it as `async with Pool(…) as pool`."""

    def __init__(self, num_workers: int, timeout: float, memory_mib: int) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Pool:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

    async def load(self, specs: Sequence[FunctionSpec]) -> None:
        """Import each in a worker. Raises InputError for one that cannot be loaded or called."""
        raise NotImplementedError

    async def judge(self, spec: FunctionSpec, samples: Sequence[Sample]) -> tuple[Outcome, ...]:
        """In order. Raises nothing for a bad answer or worker: the outcome says it."""
        raise NotImplementedError
