"""A reward service that judges nothing: every other answer is right."""

from __future__ import annotations

from typing import Any

from trimaran.types import Score
from trimaran.v1 import reward_pb2, reward_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class StandInReward(reward_pb2_grpc.RewardServiceServicer):
    async def ScoreGroup(self, request: Any, context: Any) -> reward_pb2.ScoreGroupResponse:
        scores = [Score(float(i % 2)) for i, _ in enumerate(wire.decode_samples(request))]
        return reward_pb2.ScoreGroupResponse(verdicts=[wire.encode_verdict(s) for s in scores])


def make_reward(address: str) -> rpc.Server:
    add = reward_pb2_grpc.add_RewardServiceServicer_to_server
    return rpc.Server(address, [rpc.service(reward_pb2.DESCRIPTOR, add, StandInReward())])
