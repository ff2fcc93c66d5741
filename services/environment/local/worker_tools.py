"""Functions, and classes of TRL and verl, in a process of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from services.environment.local.rows import row_of
from services.environment.tools.source import ToolAnswer
from services.environment.workers.lines import decode_reward
from services.environment.workers.pool import EnvironmentPool
from services.environment.workers.process import EnvironmentProcess
from trimaran.errors import UnavailableError
from trimaran.types import Opening, Prompt, ToolCall


class WorkerTools:
    """A `ToolSource`: one episode's process."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._worker: EnvironmentProcess | None = None

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        self._worker = await self._pool.take()
        answer = await self._ask({"do": "open", "row": row_of(prompt, seed)})
        *before, last = prompt.messages
        said = replace(last, text=last.text + answer["said"]) if answer["said"] else last
        return Opening((*before, said), tuple(self._pool.tools))

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[ToolAnswer]:
        request = {"do": "call", "calls": [[call.name, call.arguments] for call in calls]}
        answers = (await self._ask(request))["answers"]
        if len(answers) != len(calls):
            raise UnavailableError(
                f"the environment's process gave {len(answers)} answers to {len(calls)}"
            )
        return [ToolAnswer(str(text), bool(failed)) for text, failed in answers]

    async def reward(self) -> float | None:
        if not self._pool.rewards:
            return None
        return decode_reward((await self._ask({"do": "reward"}))["reward"])

    async def close(self) -> None:
        if worker := self._worker:
            self._worker = None
            await self._pool.give_back(worker)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._worker
        return await self._worker.ask(request)
