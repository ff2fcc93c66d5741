"""The operator's own client at the endpoint, on a replica and a weight sync that this test plays."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.environment.agents.loop import agent_host
from tests.first_epoch import draw_epoch
from tests.trimaran.test_assembly import V1, chunk, opened
from trimaran.store import open_store, store_in
from trimaran.types import Message, PolicyVersion, Replica, Routing, ToolCall
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc, weight_sync_pb2, weight_sync_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

SAID = Message("assistant", "", tool_calls=(ToolCall("add", '{"a": 1}', "call_0"),))


class Rollout(rollout_pb2_grpc.RolloutServiceServicer):
    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def Generate(self, request: Any, context: Any) -> Any:
        self.asked.append(request)
        yield opened([7, 8, 9])
        yield chunk(0, 0, [1, 2], V1)
        end = rollout_pb2.Finished(finish_reason="stop", message=wire.encode_message(SAID))
        yield rollout_pb2.GenerateResponse(finished=[end])


class WeightSync(weight_sync_pb2_grpc.WeightSyncServiceServicer):
    def __init__(self) -> None:
        self.routing = Routing(None, ())

    async def GetRouting(self, request: Any, context: Any) -> Any:
        return weight_sync_pb2.GetRoutingResponse(routing=wire.encode_routing(self.routing))


async def test_a_client_of_the_operator_gets_a_turn_of_the_live_weights(tmp_path: Path) -> None:
    rollout, weight_sync = Rollout(), WeightSync()

    async with AsyncExitStack() as stack:
        store = await open_store(store_in(tmp_path))
        stack.push_async_callback(store.close)
        add_rollout = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
        add_sync = weight_sync_pb2_grpc.add_WeightSyncServiceServicer_to_server
        services = [
            rpc.service(rollout_pb2.DESCRIPTOR, add_rollout, rollout),
            rpc.service(weight_sync_pb2.DESCRIPTOR, add_sync, weight_sync),
        ]
        server = rpc.Server("127.0.0.1:0", services, store.newest_epoch)
        await server.start()
        stack.push_async_callback(server.stop)
        endpoints = {"weight_sync": server.address}
        await stack.enter_async_context(agent_host(None, tmp_path, endpoints=endpoints))
        endpoint = json.loads((tmp_path / "endpoint-0.json").read_text())
        client = openai.AsyncOpenAI(
            base_url=endpoint["url"] + "/v1", api_key=endpoint["token"], max_retries=0
        )
        await stack.enter_async_context(client)
        await draw_epoch(tmp_path, "agents")
        with pytest.raises(openai.InternalServerError, match="no replica"):
            await ask(client)
        weight_sync.routing = Routing(
            PolicyVersion("agents", V1, "root"),
            (Replica("rollout-1", "127.0.0.1:1"), Replica("rollout-0", server.address)),
        )
        for _ in range(2):  # the second controller's services refuse the first one's epoch
            answer = await ask(client)
            (call,) = answer.choices[0].message.tool_calls
            assert (call.function.name, answer.choices[0].finish_reason) == (
                "add",
                "tool_calls",
            )
            assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 2)
            assert answer.system_fingerprint == str(V1)
            await draw_epoch(tmp_path, "agents")
        with pytest.raises(openai.AuthenticationError):
            await ask(client.with_options(api_key="another"))
    assert [request.caller.epoch for request in rollout.asked] == [1, 2]
    request = rollout.asked[0]
    assert wire.decode_sampling(request.sampling).stop == ("END",)
    assert (request.sampling.temperature, request.sampling.max_tokens) == (0.0, 9)
    assert request.HasField("turn") and not request.turn.prefix_token_ids


async def ask(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(
        model="policy",
        messages=[{"role": "user", "content": "What is 1 + 2?"}],
        temperature=0,
        max_tokens=9,
        stop="END",
    )
