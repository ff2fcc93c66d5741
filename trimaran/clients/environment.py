"""EnvironmentService: the world of an episode."""

from __future__ import annotations

from trimaran.clients.base import CONTROL_SECONDS, CallerClient
from trimaran.types import Message, Opening, Prompt, Reply, Usage
from trimaran.v1 import environment_pb2 as pb
from trimaran.v1 import environment_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

NO_USAGE = Usage(0, 0)


class EnvironmentClient(CallerClient):
    """Speaks to one replica of the environment service.

    Example:
        async with EnvironmentClient("127.0.0.1:7009", Caller("addition-1", epoch=2)) as client:
            opening = await client.open("17.1.0", prompt, seed=7, timeout=60.0)
            reply = await client.step("17.1.0", 1, Message("assistant", "CALC 3*4"), "stop", 60.0)
            await client.close_episode("17.1.0")
    """

    _service = environment_pb2_grpc.EnvironmentServiceStub

    async def open(self, episode: str, prompt: Prompt, seed: int, timeout: float) -> Opening:
        """`episode`: names this try at it. Raises TrimaranError for a fault of ours."""
        request = pb.OpenRequest(
            caller=self._caller, episode=episode, prompt=wire.encode_prompt(prompt), seed=seed
        )
        answer: pb.OpenResponse = await rpc.call(self._stub.Open, request, timeout)
        return wire.decode_opening(answer)

    async def step(
        self,
        episode: str,
        turn: int,
        message: Message,
        finish_reason: str,
        timeout: float,
        usage: Usage = NO_USAGE,
    ) -> Reply:
        """`turn`: from 1 on; safe to ask again for the last one. Raises TrimaranError for a fault of ours."""
        request = pb.StepRequest(
            caller=self._caller,
            episode=episode,
            turn=turn,
            message=wire.encode_message(message),
            finish_reason=finish_reason,
            num_prompt_tokens=usage.num_prompt_tokens,
            num_tokens=usage.num_tokens,
        )
        answer: pb.StepResponse = await rpc.call(self._stub.Step, request, timeout)
        return wire.decode_reply(answer)

    async def close_episode(self, episode: str) -> None:
        request = pb.CloseRequest(caller=self._caller, episode=episode)
        await rpc.call(self._stub.Close, request, CONTROL_SECONDS)
