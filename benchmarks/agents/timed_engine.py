"""vLLM's engine, which tells how long its callers have waited for it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.rollout.engine import Event, GenerationRequest
from services.rollout.vllm.engine import VllmEngine


class TimedEngine(VllmEngine):
    seconds = 0.0
    """In `generate`, of all calls."""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        async with aclosing(super().generate(request)) as events:
            while True:
                began = time.perf_counter()
                event = await anext(events, None)
                self.seconds += time.perf_counter() - began
                if event is None:
                    return
                yield event
