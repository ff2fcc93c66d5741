"""Owns a pool with workers that hang, until it is killed. `python -m tests.reward.workers.unruly_owner LOG`"""

from __future__ import annotations

import asyncio
import sys

from services.reward.terms import FunctionSpec
from services.reward.workers.pool import WorkerPool
from trimaran.rewards import Sample


async def main(log: str) -> None:
    spec = FunctionSpec("tests.reward.unruly:answer")
    samples = [Sample(text, "", {"log": log}) for text in ("hang-holding-the-lock", "deafen")]
    async with WorkerPool(3, 600, 4096) as pool:  # one worker stays idle
        await pool.load([spec])
        await pool.judge(spec, samples)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
