"""A prompt's greedy answer, beside its group: what ReMax compares the group's rewards with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import NamedTuple

from services.controller.episodes.maker import CompletionMaker
from services.controller.scoring import Scorer
from trimaran.config import RunConfig
from trimaran.types import Prompt, Sampling, Score, Segment

FIRST_NUMBER = 1 << 61
"""Greedy answers have numbers of their own, between the training line's and a validation's."""


class Greedy(NamedTuple):
    """What a group's advantages need of its greedy answer."""

    reward: float
    segments: tuple[Segment, ...]
    """Who made its tokens: they are proven with those of the group, also when it trains."""


@asynccontextmanager
async def greedily(
    config: RunConfig, maker: CompletionMaker, scorer: Scorer, number: int, prompt: Prompt
) -> AsyncGenerator[Awaitable[Greedy | None]]:
    """While the block runs, the prompt of group `number` is answered at temperature 0, if the run's
    advantage wants that. Awaited inside the block: what it is worth, else None.

    The await raises what kept it from being generated or scored; at the end of the block it is given up.
    """
    if not config.algorithm.needs_greedy:
        nothing: asyncio.Future[Greedy | None] = asyncio.get_running_loop().create_future()
        nothing.set_result(None)
        yield nothing
        return

    async def answer() -> Greedy:
        sampling = Sampling(0.0, config.rollout.max_tokens, num_samples=1)
        group = await maker.generate(FIRST_NUMBER + number, prompt, sampling)
        (verdict,) = (await scorer.score(group)).verdicts_G
        assert isinstance(verdict, Score), "half of one completion is the whole"
        return Greedy(verdict.reward, group.completions_G[0].all_segments)

    task = asyncio.create_task(answer())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
