"""RewardService: scores a group's completions, and nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from services.reward.pool import RulePool
from services.reward.rules import check_rules
from trimaran import rpc, wire
from trimaran.config import RunConfig
from trimaran.errors import InputError
from trimaran.v1 import reward_pb2, reward_pb2_grpc


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    def __init__(self, pool: RulePool) -> None:
        self._pool = pool

    async def ScoreGroup(
        self, request: reward_pb2.ScoreGroupRequest, context: grpc.aio.ServicerContext
    ) -> reward_pb2.ScoreGroupResponse:
        verdicts = await self._pool.score_group(wire.decode_group(request.group))
        return reward_pb2.ScoreGroupResponse(
            verdicts=[wire.encode_verdict(verdict) for verdict in verdicts]
        )


async def serve(config: RunConfig, run_folder: Path, index: int = 0) -> None:
    """Runs until cancelled. Raises InputError for an unknown rule or a port in use."""
    check_rules(config.reward.rules)
    address = config.endpoints.reward
    if address is None:
        raise InputError("endpoints.reward: missing; give the host:port to listen at")
    pool = RulePool(config.reward.rules, config.reward.workers, config.reward.timeout)

    def add(server: Any) -> str:
        reward_pb2_grpc.add_RewardServiceServicer_to_server(RewardServicer(pool), server)
        return reward_pb2.DESCRIPTOR.services_by_name["RewardService"].full_name

    server = rpc.Server(address, [add])
    await pool.start()
    try:
        await server.start()
        await asyncio.get_running_loop().create_future()
    finally:
        await server.stop()
        await pool.close()
