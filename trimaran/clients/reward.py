"""RewardService: score the completions of a group."""

from __future__ import annotations

from trimaran.clients.base import CallerClient
from trimaran.types import Group, Verdict
from trimaran.v1 import reward_pb2 as pb
from trimaran.v1 import reward_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class RewardClient(CallerClient):
    """Speaks to the reward service.

    Example:
        async with RewardClient("127.0.0.1:7002", Caller("addition-1", epoch=2)) as client:
            verdicts = await client.score_group(group, timeout=60.0)
    """

    _service = reward_pb2_grpc.RewardServiceStub

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        """One verdict a completion, in their order. Safe to ask again."""
        request = wire.encode_score_request(self._caller, group)
        answer: pb.ScoreGroupResponse = await rpc.call(self._stub.ScoreGroup, request, timeout)
        return tuple(wire.decode_verdict(verdict) for verdict in answer.verdicts)
