"""Services of a few lines, and a server for them."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

from trimaran.types import Caller, Group, Message, Prompt
from trimaran.v1 import reward_pb2, reward_pb2_grpc, run_pb2, run_pb2_grpc, types_pb2
from trimaran.wire import rpc

CALLER = Caller("run", 1)
GROUP = Group(1, 1, Prompt("p", (Message("user", "?"),), "t", "a"), (1, 2), ())
REQUEST = reward_pb2.ScoreGroupRequest(caller=types_pb2.Caller(run_id="run", epoch=1))


class FakeReward(reward_pb2_grpc.RewardServiceServicer):
    """Raises `error`, or answers with one faulted verdict. `clients`: who asked."""

    def __init__(self, error=None):
        self.error = error
        self.clients = []

    async def ScoreGroup(self, request, context) -> Any:
        self.clients.append(rpc.client())
        if self.error:
            raise self.error
        verdict = types_pb2.Verdict(faulted=types_pb2.Faulted(fault="busy"))
        return reward_pb2.ScoreGroupResponse(verdicts=[verdict])


class FakeRun(run_pb2_grpc.RunServiceServicer):
    """Streams an event every so many seconds."""

    def __init__(self, seconds=60.0):
        self.seconds = seconds

    async def WatchRun(self, request, context):
        run = run_pb2.Run(state=run_pb2.Run.STATE_RUNNING)
        while True:
            yield run_pb2.WatchRunResponse(
                event=run_pb2.RunEvent(kind=run_pb2.RunEvent.KIND_STATE, run=run)
            )
            await asyncio.sleep(self.seconds)


def reward_service(servicer):
    add = reward_pb2_grpc.add_RewardServiceServicer_to_server
    return rpc.service(reward_pb2.DESCRIPTOR, add, servicer)


def run_service(servicer):
    return rpc.service(run_pb2.DESCRIPTOR, run_pb2_grpc.add_RunServiceServicer_to_server, servicer)


@asynccontextmanager
async def serving(*services, **options):
    """Yields the address."""
    server = rpc.Server("127.0.0.1:0", services, **options)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()
