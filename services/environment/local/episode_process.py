"""One episode's process of the pool."""

from __future__ import annotations

from typing import Any

from services.environment.workers.pool import EnvironmentPool
from services.environment.workers.process import EnvironmentProcess
from trimaran.data.messages import trl_message
from trimaran.types import Prompt


class EpisodeProcess:
    """From `begin` to `close`."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._worker: EnvironmentProcess | None = None

    async def begin(self, prompt: Prompt, seed: int) -> dict[str, Any]:
        """With the row as user code gets it, a `trimaran.episodes.Row`."""
        self._worker = await self._pool.take()
        row = {
            "prompt_id": prompt.prompt_id,
            "task": prompt.task,
            "answer": prompt.answer,
            "extras": dict(prompt.extras),
            "messages": list(map(trl_message, prompt.messages)),
            "seed": seed,
        }
        return await self.ask({"do": "open", "row": row})

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker
        return await self._worker.ask(request)

    async def close(self) -> None:
        if worker := self._worker:
            self._worker = None
            await self._pool.give_back(worker)
