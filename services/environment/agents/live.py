"""A run's live weights for the operator's own client: one turn of a replica, which trains nothing.

    request ──▶ the store: the newest epoch ──▶ weight sync: which replicas are live ──▶ one of them: Generate

The endpoint shows the epoch that the run's store knows as the newest, as the run's controller does, so a replica
takes it for as long as that controller is the one that counts. It asks for nothing but completions.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Self

from services.environment.agents.forms import ChatRequest
from trimaran.clients import GroupAssembly, RolloutClient, WeightSyncClient
from trimaran.config import RunConfig
from trimaran.errors import BehindError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.directory import Directory, named_addresses
from trimaran.store import Store, open_store
from trimaran.types import Caller, Message, PolicyVersion, Prefix, Prompt, Replica, Sampling, Usage

MOST = 8
"""Requests at a time; further ones wait, so that they do not take the replicas from the run."""


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """Example: LiveAnswer(Message("assistant", "3"), "stop", Usage(12, 2), "0.7")"""

    message: Message
    finish_reason: str
    usage: Usage
    version: str
    """Of the weights that were live when it was asked for."""


class LivePolicy:
    """Example:
    async with LivePolicy(config, run) as policy:
        answer = await policy.complete(ChatRequest.read(body))
    """

    def __init__(self, config: RunConfig, run: RunContext) -> None:
        self._config, self._run = config, run
        self._stack = AsyncExitStack()
        self._store: Store | None = None
        self._room = asyncio.Semaphore(MOST)

    async def __aenter__(self) -> Self:
        self._store = await open_store(self._run.store_url)
        self._stack.push_async_callback(self._store.close)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def complete(self, request: ChatRequest) -> LiveAnswer:
        """Raises InputError for what the run's lengths do not allow, UnavailableError while no replica is live."""
        async with self._room:
            assert self._store
            epoch = await self._store.newest_epoch(self._run.run_id)
            caller = Caller(self._run.run_id, epoch)
            directory = Directory(self._store, self._run.run_id, named_addresses(self._config))
            place = directory.place("weight-sync")
            async with WeightSyncClient(place, caller, self._run.trust) as weight_sync:
                routing = await weight_sync.get_routing()
            if routing.live is None or not routing.routable:
                raise UnavailableError("no replica holds the run's live version now; ask again")
            replicas = random.sample(routing.routable, len(routing.routable))
            return await self._ask(request, replicas, routing.live, caller)

    async def _ask(
        self,
        request: ChatRequest,
        replicas: list[Replica],
        live: PolicyVersion,
        caller: Caller,
    ) -> LiveAnswer:
        """The first one that can."""
        failed = ""
        for replica in replicas:
            try:
                return await self._turn(request, replica, live, caller)
            except (UnavailableError, BehindError) as error:
                failed = f"{replica.name}: {error}"
        raise UnavailableError(f"no replica answers now: {failed}")

    async def _turn(
        self, request: ChatRequest, replica: Replica, live: PolicyVersion, caller: Caller
    ) -> LiveAnswer:
        asked = request.to_request()
        prompt = Prompt("client", asked.messages, "", "", tools=asked.tools)
        rollout, assembly = self._config.rollout, GroupAssembly(1)
        temperature, seed = request.temperature, request.seed
        sampling = Sampling(
            rollout.temperature if temperature is None else temperature,
            asked.max_tokens or rollout.max_tokens,
            num_samples=1,
            seed=secrets.randbits(63) if seed is None else seed % 2**63,
            top_p=1.0 if request.top_p is None else request.top_p,
            stop=tuple(sorted(request.stops)),
        )
        async with RolloutClient(replica.address, caller, self._run.trust) as client:
            group = await client.generate(
                *(0, 1, prompt, sampling, live.version, assembly, rollout.idle_timeout),
                prefix=Prefix(),
            )
        (completion,) = group.completions_G
        assert assembly.message
        usage = Usage(len(group.prompt_token_ids), len(completion.token_ids_T))
        return LiveAnswer(assembly.message, completion.finish_reason, usage, str(live.version))
