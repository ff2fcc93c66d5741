"""Weight sync finds trainer ranks that answer at another address than it knew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from services.weight_sync import server as weight_sync
from tests.first_epoch import draw_epoch
from trimaran.clients import WeightSyncClient
from trimaran.config import parse_config
from trimaran.errors import TransferError, TrimaranError, UnavailableError
from trimaran.run.context import RunContext
from trimaran.run.network import LOOPBACK
from trimaran.run.runs import endpoints_key
from trimaran.store import open_store
from trimaran.types import Caller, PolicyVersion, VersionId
from trimaran.v1 import trainer_pb2, trainer_pb2_grpc
from trimaran.wire import rpc

SECONDS = 20.0


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    """Says that it was asked."""

    async def GetPolicyVersion(self, request: Any, context: Any) -> Any:
        raise TransferError("asked")

    async def GetOffer(self, request: Any, context: Any) -> Any:
        raise TransferError("asked")


async def serve_trainer() -> rpc.Server:
    add = trainer_pb2_grpc.add_TrainerServiceServicer_to_server
    server = rpc.Server("127.0.0.1:0", [rpc.service(trainer_pb2.DESCRIPTOR, add, Trainer())])
    await server.start()
    return server


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_trainer_ranks_that_moved_are_asked_where_they_are(
    tmp_path: Path, num_ranks: int
) -> None:
    folder = tmp_path / "run"
    caller = Caller("run", await draw_epoch(folder))
    run = RunContext.in_folder(folder)
    store = await open_store(run.store_url)
    servers = [await serve_trainer() for _ in range(num_ranks)]
    own = LOOPBACK.free_address()
    tree = {
        "model": {"path": "m"},
        "data": {"train": "t"},
        "reward": {"rules": {"exact_match": 1}},
        "trainer": {"tensor_parallel": num_ranks},
        "endpoints": {
            "weight_sync": own,
            "trainer": [server.address for server in servers],
        },
    }
    serving = asyncio.create_task(weight_sync.serve(parse_config(tree), run))
    version = PolicyVersion("run", VersionId(0, 1), "00" * 16)

    async def until_asked(client: WeightSyncClient) -> None:
        async with asyncio.timeout(SECONDS):
            while True:
                try:
                    await client.publish_version(version, SECONDS)
                except TransferError:
                    return
                except UnavailableError:
                    await asyncio.sleep(0.05)

    try:
        await rpc.wait_until_serving(own, SECONDS)
        async with WeightSyncClient(own, caller) as client:
            await until_asked(client)
            moved = [await serve_trainer() for _ in range(num_ranks)]
            named = {f"trainer-{i}": server.address for i, server in enumerate(moved)}
            await asyncio.gather(*(server.stop() for server in servers))
            servers = moved
            with pytest.raises(TrimaranError):
                await client.publish_version(version, SECONDS)
            await store.put(endpoints_key("run"), named)
            await until_asked(client)
    finally:
        serving.cancel()
        await asyncio.gather(serving, *(s.stop() for s in servers), return_exceptions=True)
        await store.close()
