"""RewardService: score the completions of a group."""

from __future__ import annotations

from typing import Any

from trimaran.clients.base import Client
from trimaran.run.directory import ProcessPlace
from trimaran.trust.access import NO_TRUST, Trust
from trimaran.types import Caller, Group, Verdict
from trimaran.v1 import reward_pb2 as pb
from trimaran.v1 import reward_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc


class RewardClient(Client):
    """Speaks to the reward service.

    Example:
        async with RewardClient("127.0.0.1:7002", Caller("addition-1", epoch=2)) as client:
            verdicts = await client.score_group(group, timeout=60.0)
    """

    def __init__(
        self, address: str | ProcessPlace, caller: Caller, trust: Trust = NO_TRUST
    ) -> None:
        super().__init__(address, trust)
        self._stub: Any = reward_pb2_grpc.RewardServiceStub(self._channel)
        self._caller = wire.encode_caller(caller)

    async def score_group(self, group: Group, timeout: float) -> tuple[Verdict, ...]:
        """One verdict a completion, in their order. Safe to ask again."""
        request = wire.encode_score_request(self._caller, group)
        answer: pb.ScoreGroupResponse = await rpc.call(self._stub.ScoreGroup, request, timeout)
        return tuple(wire.decode_verdict(verdict) for verdict in answer.verdicts)
