"""Rank 0 finds ranks that answer at another address than it knew."""

from __future__ import annotations

import asyncio
from typing import Any

from services.trainer.other_ranks import OtherRanks
from tests.extending.memory_store import MemoryStore
from trimaran.run.directory import Directory
from trimaran.run.runs import endpoints_key
from trimaran.types import Caller
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

SECONDS = 10.0


class Rank(trainer_pb2_grpc.TrainerServiceServicer):
    def __init__(self) -> None:
        self.exported: list[str] = []

    async def ExportModel(self, request: Any, context: Any) -> Any:
        self.exported.append(request.path)
        return trainer_pb2.ExportModelResponse(path=request.path)


async def serve(rank: Rank) -> rpc.Server:
    add = trainer_pb2_grpc.add_TrainerServiceServicer_to_server
    server = rpc.Server("127.0.0.1:0", [rpc.service(trainer_pb2.DESCRIPTOR, add, rank)])
    await server.start()
    return server


async def test_a_rank_that_listens_elsewhere_is_found_and_takes_part() -> None:
    store, rank = MemoryStore(), Rank()
    gone = await serve(Rank())
    await gone.stop()
    here = await serve(rank)
    await store.put(endpoints_key("run"), {"trainer-1": here.address})
    place = Directory(store, "run", {"trainer-1": gone.address}).place("trainer-1")
    others = OtherRanks([place])
    try:
        await rpc.wait_until_serving(place, SECONDS)
        request = trainer_pb2.ExportModelRequest(
            caller=wire.encode_caller(Caller("run", 1)), path="model"
        )
        done = asyncio.sleep(0, "ours")
        assert await others.run_everywhere("ExportModel", request, done, SECONDS) == "ours"
        assert rank.exported == ["model"]
    finally:
        await others.close()
        await here.stop()
