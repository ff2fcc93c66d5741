"""An episode with tools: calls become messages of role `tool`, and a message without calls ends it.

message ──▶ calls that cannot be made ──▶ what is wrong with each
        └─▶ the others, to the source of each ──▶ answers, cut to what a message may hold
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

from services.environment.tools.source import ToolAnswer, ToolSource
from services.environment.workers.lines import shortened
from trimaran.config import EnvironmentSection
from trimaran.errors import InputError
from trimaran.types import Message, Opening, Prompt, Reply, ToolCall


class ToolEnvironment:
    """Example:
    environment = ToolEnvironment([WorkerTools(pool)], section)
    opening = await environment.open(prompt, seed=7)
    call = ToolCall("python", '{"code": "print(3 * 4)"}')
    reply = await environment.step(Message("assistant", "", tool_calls=(call,)), "stop")
    assert reply.messages == (Message("tool", "12", name="python"),)
    """

    def __init__(self, sources: Sequence[ToolSource], section: EnvironmentSection) -> None:
        self._sources, self._max_chars = tuple(sources), section.max_message_chars
        self._sums = section.reward == "sum"
        self._by_name: dict[str, ToolSource] = {}
        self._reward_so_far = 0.0

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        opening = Opening(prompt.messages)
        for source in self._sources:
            opened = await source.open(replace(prompt, messages=opening.messages), seed)
            for tool in opened.tools:
                if tool.name in self._by_name:
                    raise InputError(f"environment: two tools are named {tool.name}; rename one")
                self._by_name[tool.name] = source
            opening = Opening(opened.messages, opening.tools + opened.tools)
        return opening

    async def step(self, message: Message, finish_reason: str) -> Reply:
        answers = await self._answers(message.tool_calls)
        return Reply(
            messages=tuple(
                Message(
                    "tool",
                    shortened(answer.text, self._max_chars),
                    call_id=call.call_id,
                    name=call.name,
                )
                for call, answer in zip(message.tool_calls, answers, strict=True)
            ),
            reward=await self._reward(),
            done=not answers,
            num_calls=len(answers),
            num_failures=sum(answer.failed for answer in answers),
        )

    async def close(self) -> None:
        await asyncio.gather(*(source.close() for source in self._sources))

    async def _answers(self, calls: Sequence[ToolCall]) -> list[ToolAnswer]:
        """One a call, in order. Sources answer beside each other."""
        answers = [self._refusal(call) for call in calls]
        places: dict[ToolSource, list[int]] = {}
        for place, answer in enumerate(answers):
            if answer is None:
                places.setdefault(self._by_name[calls[place].name], []).append(place)
        given = await asyncio.gather(
            *(source.call([calls[place] for place in own]) for source, own in places.items())
        )
        for own, theirs in zip(places.values(), given, strict=True):
            for place, answer in zip(own, theirs, strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def _refusal(self, call: ToolCall) -> ToolAnswer | None:
        """What is wrong with a call, whatever its tool would do."""
        if call.name not in self._by_name:
            known = ", ".join(self._by_name)
            return ToolAnswer(
                f"error: there is no tool {call.name!r}; the tools are: {known}", True
            )
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            return ToolAnswer(f"error: the arguments of {call.name} are no JSON: {error}", True)
        if not isinstance(arguments, dict):
            return ToolAnswer(f"error: the arguments of {call.name} are no JSON object", True)
        return None

    async def _reward(self) -> float | None:
        """For this step: where steps are summed, what the episode is worth more than after the last one."""
        known = [
            reward for source in self._sources if (reward := await source.reward()) is not None
        ]
        if not known:
            return None
        total = sum(known)
        step, self._reward_so_far = total - self._reward_so_far, total
        return step if self._sums else total
