"""A load by vLLM waits for the tokens that its core made before the pause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest

from services.rollout.vllm.engine import VllmEngine
from services.rollout.vllm.stream import VllmStream
from tests.configs import configure
from trimaran.host.device import Device
from trimaran.types import VersionId

pytestmark = pytest.mark.e2e

OLD, NEW = VersionId(0, 1), VersionId(0, 2)
REQUEST = "7-0"
NUM_OUTPUTS, CHUNKS = 3, 4
"""vLLM counts an output's tokens chunk by chunk, and lets others run in between."""


class FakeLlm:
    """vLLM's queue, and the task that counts what comes out of it, as in its AsyncLLM."""

    def __init__(self) -> None:
        self.num_counted = 0
        self.outputs_queue: asyncio.Queue[Any] = asyncio.Queue()
        self.engine_core = self
        self.output_processor = self
        self.resumed_at: int | None = None

    async def handle(self) -> None:
        while True:
            output = await self.outputs_queue.get()
            for _ in range(CHUNKS if output == "tokens" else 0):
                await asyncio.sleep(0.002)
                self.num_counted += 1

    @property
    def request_states(self) -> dict[str, Any]:
        detokenizer = SimpleNamespace(num_output_tokens=lambda: self.num_counted)
        state = SimpleNamespace(external_req_id=REQUEST, request_index=0, detokenizer=detokenizer)
        return {REQUEST: state}

    async def pause_generation(self, mode: str, clear_cache: bool) -> None:
        """The core sends what it has made before it answers."""
        for _ in range(NUM_OUTPUTS):
            self.outputs_queue.put_nowait("tokens")

    async def resume_generation(self) -> None:
        self.resumed_at = self.num_counted


class FakeWorkers:
    def __init__(self) -> None:
        self.turn = asyncio.Lock()

    @asynccontextmanager
    async def prepared_writes(
        self, path: str, description: dict[str, Any], may_write: bool
    ) -> AsyncIterator[bool]:
        yield False

    async def load(self, path: str, description: dict[str, Any]) -> None: ...


async def test_every_token_made_before_the_pause_bears_the_old_versions_name() -> None:
    engine: Any = VllmEngine(configure(), Device("cpu", "gloo"))
    engine.llm, engine._workers = FakeLlm(), FakeWorkers()
    stream = VllmStream(REQUEST, {0: 0}, OLD)
    engine._streams.add(stream)
    counting = asyncio.create_task(engine.llm.handle())
    shadow = SimpleNamespace(path="", manifest=None, description=dict)
    async with asyncio.timeout(30):
        await engine.load_weights(shadow, NEW)
    counting.cancel()
    with suppress(asyncio.CancelledError):
        await counting
    made = NUM_OUTPUTS * CHUNKS
    assert engine.llm.resumed_at == made
    tokens = list(range(made + 2))
    chunks = list(stream.chunks(0, tokens, [-1.0] * len(tokens)))
    assert [(c.version, len(c.token_ids_T)) for c in chunks] == [(OLD, made), (NEW, 2)]
