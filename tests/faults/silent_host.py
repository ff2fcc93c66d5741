"""One end of a call between hosts: `python -m tests.faults.silent_host serve|call ADDRESS`.

`call` prints "called" once the stream has begun, and then what ended it, with the seconds it took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from tests.trimaran.wire.fakes import FakeRun
from trimaran.errors import TrimaranError
from trimaran.trust.access import Trust
from trimaran.v1 import run_pb2, run_pb2_grpc
from trimaran.wire import rpc

TRUST = Trust("t" * 64, is_network_trusted=True)


async def serve(address: str) -> None:
    add = run_pb2_grpc.add_RunServiceServicer_to_server
    service = rpc.service(run_pb2.DESCRIPTOR, add, FakeRun())
    server = rpc.Server(address, [service], trust=TRUST)
    await server.start()
    print("serves", flush=True)
    await asyncio.Event().wait()


async def call(address: str) -> None:
    async with rpc.connect(address, TRUST) as channel:
        stub: Any = run_pb2_grpc.RunServiceStub(channel)
        begun = time.monotonic()
        try:
            async for _ in rpc.stream(stub.WatchRun, run_pb2.WatchRunRequest(), None):
                print("called", flush=True)
                begun = time.monotonic()
        except TrimaranError as error:
            print(type(error).__name__, time.monotonic() - begun, flush=True)


if __name__ == "__main__":
    asyncio.run({"serve": serve, "call": call}[sys.argv[1]](sys.argv[2]))
