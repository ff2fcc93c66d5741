"""Functions, and classes of TRL and verl, in a process of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from services.environment.local.episode_process import EpisodeProcess
from services.environment.tools.source import ToolAnswer
from services.environment.workers.lines import decode_reward
from trimaran.errors import UnavailableError
from trimaran.types import Opening, Prompt, ToolCall


class WorkerTools(EpisodeProcess):
    """A `ToolSource`."""

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        answer = await self.begin(prompt, seed)
        *before, last = prompt.messages
        said = replace(last, text=last.text + answer["said"]) if answer["said"] else last
        return Opening((*before, said), tuple(self._pool.tools))

    async def call(self, calls: Sequence[ToolCall]) -> Sequence[ToolAnswer]:
        request = {"do": "call", "calls": [[call.name, call.arguments] for call in calls]}
        answers = (await self.ask(request))["answers"]
        if len(answers) != len(calls):
            raise UnavailableError(
                f"the environment's process gave {len(answers)} answers to {len(calls)}"
            )
        return [ToolAnswer(str(text), bool(failed)) for text, failed in answers]

    async def reward(self) -> float | None:
        if not self._pool.rewards:
            return None
        return decode_reward((await self.ask({"do": "reward"}))["reward"])
