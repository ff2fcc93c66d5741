"""A replica's client, and streams that break."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tests.trimaran.run.test_directory import serving
from tests.trimaran.test_assembly import V1, chunk, finished, opened
from trimaran.clients import GroupAssembly, RolloutClient
from trimaran.errors import UnavailableError
from trimaran.types import Caller, Group, Message, Prompt, Sampling
from trimaran.v1 import rollout_pb2, rollout_pb2_grpc
from trimaran.wire import messages as wire
from trimaran.wire import rpc

PROMPT = Prompt("train.jsonl:1", (Message("user", "What is 1 + 2?"),), "addition", "3")


class Replica(rollout_pb2_grpc.RolloutServiceServicer):
    """One completion of two tokens; its first streams break after so many answers."""

    def __init__(self, *breaks: int) -> None:
        self.breaks = list(breaks)
        self.asked: list[list[int]] = []
        """Of each call the completions that were begun already."""

    async def Generate(self, request: Any, context: Any) -> Any:
        self.asked.append([c.index for c in request.continuations])
        left = self.breaks.pop(0) if self.breaks else None
        starts = [len(wire.decode_token_ids(c.token_ids)) for c in request.continuations]
        start = starts[0] if starts else 0
        answers = [opened([9]), *(chunk(0, i, [i], V1) for i in range(start, 2)), finished(0)]
        for answer in answers[:left]:
            yield answer
        if left is not None:
            raise UnavailableError("the connection broke")


async def generate(replica: Replica) -> Group:
    """With another call after each that broke."""
    add = rollout_pb2_grpc.add_RolloutServiceServicer_to_server
    service, assembly = rpc.service(rollout_pb2.DESCRIPTOR, add, replica), GroupAssembly(1)
    async with serving(service) as address, RolloutClient(address, Caller("run", 1)) as client:
        for attempt in range(1, 4):
            with suppress(UnavailableError):
                return await client.generate(
                    17, attempt, PROMPT, Sampling(1.0, 2, 1), V1, assembly, 10.0
                )
    raise AssertionError("no attempt came to an end")


@pytest.mark.parametrize(
    ("breaks", "asked"),
    [
        ((0,), [[], []]),
        ((2, 2), [[], [0], [0]]),
        ((3,), [[], [0]]),
        ((4,), [[]]),  # it has said all, and breaks before its end: nothing is left to ask for
    ],
)
def test_a_group_is_whole_wherever_its_streams_break(breaks, asked) -> None:
    replica = Replica(*breaks)
    group = asyncio.run(generate(replica))
    assert [c.token_ids_T for c in group.completions_G] == [(0, 1)]
    assert replica.asked == asked


def test_a_proxy_of_the_shell_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nothing listens there
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert isinstance(asyncio.run(generate(Replica())), Group)
