"""The interceptor does to a call what it was ordered to, and to no other."""

from __future__ import annotations

import asyncio
import time
from functools import partial

import grpc
import pytest

from tests.faults import orders
from tests.faults.orders import Orders
from tests.faults_runs.calls import FaultyCalls
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc


class Counting(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self):
        self.times = []

    async def GetReplica(self, request, context):
        self.times.append(time.monotonic())
        return rollout_pb2.GetReplicaResponse(name=f"call-{len(self.times)}")

    async def Generate(self, request, context):
        self.times.append(time.monotonic())
        for _ in range(5):
            yield rollout_pb2.GenerateResponse()


@pytest.fixture
def served(tmp_path):
    """serve(do) -> what `do(stub, give, servicer)` returns; `give(method, action)` is an order."""

    def serve(do):
        async def run():
            servicer = Counting()
            server = grpc.aio.server(interceptors=[FaultyCalls(Orders(tmp_path, "one"))])
            rollout_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    stub = rollout_pb2_grpc.RolloutServiceStub(channel)
                    give = partial(orders.give, tmp_path, "one")
                    return await do(stub, give, servicer)
            finally:
                await server.stop(0)

        return asyncio.run(run())

    return serve


async def get(stub):
    return await stub.GetReplica(rollout_pb2.GetReplicaRequest(), timeout=10)


async def generate(stub):
    return [answer async for answer in stub.Generate(rollout_pb2.GenerateRequest(), timeout=10)]


@pytest.mark.parametrize(("action", "num_calls"), [("drop", 0), ("lose", 1)])
def test_a_lost_call_looks_like_a_broken_connection(served, action, num_calls):
    async def do(stub, give, servicer):
        give("GetReplica", action)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await get(stub)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert len(servicer.times) == num_calls
        await get(stub)  # an order is for one call
        assert len(servicer.times) == num_calls + 1

    served(do)


def test_an_order_for_another_method_waits(served):
    async def do(stub, give, servicer):
        give("Generate", "drop")
        await get(stub)
        with pytest.raises(grpc.aio.AioRpcError):
            await generate(stub)
        assert len(servicer.times) == 1

    served(do)


def test_a_call_arrives_late(served):
    async def do(stub, give, servicer):
        give("GetReplica", "delay 0.3")
        begun = time.monotonic()
        await get(stub)
        assert servicer.times[0] - begun >= 0.3

    served(do)


def test_a_call_arrives_twice(served):
    async def do(stub, give, servicer):
        give("GetReplica", "twice")
        await get(stub)
        await asyncio.sleep(0.1)
        assert len(servicer.times) == 2

    served(do)


def test_a_copy_arrives_after_the_answer(served):
    async def do(stub, give, servicer):
        give("GetReplica", "again 0.2")
        assert (await get(stub)).name == "call-1"
        assert len(servicer.times) == 1
        await asyncio.sleep(0.5)
        assert len(servicer.times) == 2

    served(do)


def test_a_stream_breaks_in_the_middle(served):
    async def do(stub, give, servicer):
        give("Generate", "cut 2")
        answers = []
        with pytest.raises(grpc.aio.AioRpcError):
            async for answer in stub.Generate(rollout_pb2.GenerateRequest(), timeout=10):
                answers.append(answer)
        assert len(answers) == 2
        assert len(await generate(stub)) == 5

    served(do)
