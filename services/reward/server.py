"""RewardService: scores a group's completions, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

import grpc

from services.reward.plugins.calling.client import PluginJudge
from services.reward.scoring import Judge, PartNames, score_group
from services.reward.terms import FunctionSpec, PluginSpec, Term, make_terms
from services.reward.workers.pool import WorkerPool
from services.reward.workers.semaphores import claim_semaphores
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.plugins.caller import forget_tokens
from trimaran.run.context import RunContext
from trimaran.store import open_store
from trimaran.telemetry.series import REWARD_QUEUE, REWARD_WORKERS
from trimaran.trust.allowed import Allowed
from trimaran.v1 import reward_pb2, reward_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    def __init__(self, terms: Sequence[Term], judges: Mapping[str, Judge]) -> None:
        self._terms, self._judges, self._names = terms, judges, PartNames()

    async def ScoreGroup(
        self, request: reward_pb2.ScoreGroupRequest, context: grpc.aio.ServicerContext
    ) -> reward_pb2.ScoreGroupResponse:
        verdicts = await score_group(
            self._terms, self._judges, self._names, wire.decode_samples(request)
        )
        return reward_pb2.ScoreGroupResponse(
            verdicts=[wire.encode_verdict(verdict) for verdict in verdicts]
        )


async def serve(config: RunConfig, run: RunContext, index: int = 0) -> None:
    """Runs until cancelled. Raises InputError for a rule that cannot be used or a port in use."""
    address = config.endpoints.reward
    if address is None:
        raise InputError("endpoints.reward: missing; give the host:port to listen at")
    allowed = Allowed.from_environment()
    terms = make_terms(config, allowed)
    claim_semaphores(run.folder)
    async with AsyncExitStack() as stack:
        store = await open_store(run.store_url)
        stack.push_async_callback(store.close)
        reward = config.reward
        pool = WorkerPool(reward.workers, reward.timeout, reward.memory_mib)
        judges = await open_judges(terms, pool, allowed, stack)
        add = reward_pb2_grpc.add_RewardServiceServicer_to_server
        service = rpc.service(reward_pb2.DESCRIPTOR, add, RewardServicer(terms, judges))
        server = rpc.Server(address, [service], store.newest_epoch, run.trust)
        server.metrics.show(REWARD_QUEUE, lambda: pool.num_waiting)
        server.metrics.show(REWARD_WORKERS, lambda: pool.num_workers)
        try:
            await server.start()
            await asyncio.get_running_loop().create_future()
        finally:
            await server.stop()


async def open_judges(
    terms: Sequence[Term], pool: WorkerPool, allowed: Allowed, stack: AsyncExitStack
) -> dict[str, Judge]:
    """One a term: the pool for functions, HTTP for plugins. Raises InputError.

    The pool is opened where there are functions, and after the tokens of plugins were read: its
    processes do not get them.
    """
    functions = {t.name: t.spec for t in terms if isinstance(t.spec, FunctionSpec)}
    plugins = {t.name: t.spec for t in terms if isinstance(t.spec, PluginSpec)}
    judges: dict[str, Judge] = {}
    if plugins:
        client = PluginJudge(list(plugins.values()), allowed)
        await stack.enter_async_context(client)
        forget_tokens(spec.plugin for spec in plugins.values())
        judges |= {name: partial(client.judge, spec) for name, spec in plugins.items()}
    if functions:
        await stack.enter_async_context(pool)
        await pool.load(list(functions.values()))
        judges |= {name: partial(pool.judge, spec) for name, spec in functions.items()}
    return judges
