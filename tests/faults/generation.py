"""Generates all the time, from whatever is routable, and checks every token that arrives."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from tests.faults.house import GROUP_SIZE, House
from tests.faults.oracle import Oracle
from trimaran.clients import GroupAssembly, RolloutClient, WeightSyncClient
from trimaran.errors import TrimaranError
from trimaran.types import (
    Caller,
    Group,
    Message,
    Prompt,
    Replica,
    Routing,
    Sampling,
    VersionId,
)

NUM_WORKERS = 3
NUM_TOKENS = 12
POLL_SECONDS = 0.1
PROMPT = Prompt("faults:1", (Message("user", "What is 1 + 2?"),), "addition", "3")
SAMPLING = Sampling(1.0, NUM_TOKENS, GROUP_SIZE)


@dataclass(slots=True)
class Generation:
    house: House
    oracle: Oracle
    caller: Caller
    groups: deque[Group] = field(default_factory=lambda: deque(maxlen=8))
    """Newest last; whole ones, whether right or wrong."""
    num_tokens: int = 0
    suspects: set[tuple[str, VersionId]] = field(default_factory=set)
    """Makers whose memory the driver itself has spoilt, and what was loaded there then."""
    num_spoilt: int = 0
    """Wrong tokens of suspects: foreseen, but they must not train."""
    wrong: list[str] = field(default_factory=list)
    """Wrong tokens of all others: there must be none."""
    longest_silence: float = 0.0
    """Seconds between two groups that came one after the other."""
    hangs: list[str] = field(default_factory=list)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _routing: Routing = field(default_factory=lambda: Routing(None, ()))
    _number: int = 0
    _last_arrival: float = 0.0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch())
            for _ in range(NUM_WORKERS):
                tasks.create_task(self._work())

    async def next_groups(self, count: int, seconds: float) -> list[Group]:
        """Fresh ones, which are taken out. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while len(self.groups) < count:
                self._arrived.clear()
                await self._arrived.wait()
        return [self.groups.pop() for _ in range(count)]

    async def next_spoilt(self, suspect: tuple[str, VersionId], seconds: float) -> Group:
        """A group with wrong tokens of this suspect. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while True:
                for group in self.groups:
                    makers = {(replica, version) for version, replica in group.makers}
                    if suspect in makers and not self.is_right(group):
                        return group
                self._arrived.clear()
                await self._arrived.wait()

    async def _watch(self) -> None:
        address = self.house.config.endpoints.weight_sync
        assert address
        async with WeightSyncClient(address, self.caller) as client:
            while True:
                with suppress(TrimaranError):  # it is being restarted: what is routable stays so
                    self._routing = await client.get_routing()
                await asyncio.sleep(POLL_SECONDS)

    async def _work(self) -> None:
        while True:
            live, routable = self._routing.live, self._routing.routable
            if live is None or not routable:
                await asyncio.sleep(POLL_SECONDS)
                continue
            self._number += 1
            replica = routable[self._number % len(routable)]
            try:
                group = await self._generate(replica, live.version)
            except TrimaranError as error:
                await self._report(replica, str(error))
                await asyncio.sleep(POLL_SECONDS)
            else:
                self._check(group)
                self._note_arrival()
                self.groups.append(group)

    async def _generate(self, replica: Replica, least: VersionId) -> Group:
        idle = self.house.config.rollout.idle_timeout
        limit = 2 * idle + NUM_TOKENS
        async with RolloutClient(replica.address, self.caller) as client:
            assembly = GroupAssembly(GROUP_SIZE)
            try:
                async with asyncio.timeout(limit):
                    return await client.generate(
                        self._number, 1, PROMPT, SAMPLING, least, assembly, idle
                    )
            except TimeoutError as error:
                if isinstance(error, TrimaranError):
                    raise
                self.hangs.append(f"Generate on {replica.name}: no end after {limit:g} s")
                raise TrimaranError(self.hangs[-1]) from None

    async def _report(self, replica: Replica, reason: str) -> None:
        address = self.house.config.endpoints.weight_sync
        assert address
        async with WeightSyncClient(address, self.caller) as client:
            with suppress(TrimaranError):  # weight sync is away; whoever fails next reports again
                await client.report_replica(replica.name, reason)

    def _note_arrival(self) -> None:
        now = time.monotonic()
        if self._last_arrival:
            self.longest_silence = max(self.longest_silence, now - self._last_arrival)
        self._last_arrival = now
        self._arrived.set()

    def _check(self, group: Group) -> None:
        for completion in group.completions_G:
            for part in completion.segments:
                self.num_tokens += part.end - part.start
                if self.oracle.is_right(group.prompt_token_ids, completion, part):
                    continue
                if (part.replica, part.version) in self.suspects:
                    self.num_spoilt += part.end - part.start
                else:
                    self.wrong.append(
                        f"{part.replica} stamped {part.version} on tokens of other weights:"
                        f" {completion.token_ids_T[part.start : part.end]}"
                    )

    def is_right(self, group: Group) -> bool:
        return all(
            self.oracle.is_right(group.prompt_token_ids, completion, part)
            for completion in group.completions_G
            for part in completion.segments
        )
