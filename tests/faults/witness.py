"""Asks every replica for tokens all the time, routable or not, and has each one checked.

The controller asks only when a slot is free. This load never ends, so that every
commit, freeze and death falls into a generation.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults.house import GROUP_SIZE, House
from tests.faults.oracle import Judge
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.errors import TrimaranError
from trimaran.types import Caller, Group, Message, Prompt, Sampling, VersionId

NUM_TOKENS = 12
POLL_SECONDS = 0.1
PROMPT = Prompt("faults:1", (Message("user", "What is 1 + 2?"),), "addition", "3")
SAMPLING = Sampling(1.0, NUM_TOKENS, GROUP_SIZE)
ANY_VERSION = VersionId(0, 0)


@dataclass(slots=True)
class Witness:
    house: House
    judge: Judge
    caller: Callable[[], Caller]
    """As the newest controller."""
    hangs: list[str] = field(default_factory=list)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name in self.house.replicas:
                tasks.create_task(self._ask(name))

    async def _ask(self, name: str) -> None:
        for number in itertools.count():
            try:
                group = await self._generate(name, number)
            except TrimaranError:  # it is dead, frozen, or holds nothing: the controller's concern
                await asyncio.sleep(POLL_SECONDS)
                continue
            self.judge.is_right(group)

    async def _generate(self, name: str, number: int) -> Group:
        idle = self.house.config.rollout.idle_timeout
        limit, assembly = 2 * idle + NUM_TOKENS, GroupAssembly(GROUP_SIZE)
        async with RolloutClient(self.house.replica(name).address, self.caller()) as client:
            try:
                async with asyncio.timeout(limit):
                    return await client.generate(
                        number, 1, PROMPT, SAMPLING, ANY_VERSION, assembly, idle
                    )
            except TimeoutError as error:
                if isinstance(error, TrimaranError):
                    raise
                self.hangs.append(f"Generate on {name}: no end after {limit:g} s")
                raise TrimaranError(self.hangs[-1]) from None
