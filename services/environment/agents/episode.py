"""One episode of a program: its requests are what the policy sees, the policy's turns are their answers.

    open ──▶ the program starts, and asks            ──▶ Opening
    step ──▶ its request is answered; it asks again  ──▶ Reply
                                      it ends, or says so ──▶ Reply(done)

A program that ends with another exit code than 0 has failed in its world. One that cannot be started, or
hangs, is a fault of ours.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.environment.agents.desk import Asked, TurnAnswer
from services.environment.agents.endpoint import Endpoint
from services.environment.agents.forms import encode_message, encode_tool
from services.environment.agents.sequences import Placed, Request, RequestSequences
from services.environment.environment import EpisodeEnvironment
from trimaran.errors import UnavailableError
from trimaran.sandbox.program import Program, ProgramSpec
from trimaran.types import Message, Opening, Prompt, Reply, Usage

ROW_NAME = "row.json"
logger = logging.getLogger(__name__)


class AgentEnvironment(EpisodeEnvironment):
    """What the program says over the endpoint, whatever starts it.

    Example:
        environment = AgentEnvironment("17.1.0", endpoint)
        opening = await environment.open(prompt, seed=7)
        reply = await environment.step(Message("assistant", "7"), "stop")
        await environment.close()
    """

    def __init__(self, name: str, endpoint: Endpoint, options: Mapping[str, Any]) -> None:
        self._name, self._endpoint, self._options = name, endpoint, options
        self._desk = endpoint.add(name)
        self._sequences = RequestSequences()
        self._sequence = self._turn = 0
        self.usage = Usage(0, 0)

    async def open(self, prompt: Prompt, seed: int) -> Opening:
        await self.begin(row_of(prompt, seed, self._options))
        asked = await self.next_request()
        if asked is None:
            raise UnavailableError(f"before its first request the program {self.why_it_ended()}")
        self._sequences.place(asked.request)
        return Opening(asked.request.messages, asked.request.tools, asked.request.max_tokens)

    async def step(self, message: Message, finish_reason: str) -> Reply:
        self._turn += 1
        message = with_call_ids(message, self._turn)
        self._sequences.answer(self._sequence, message)
        self._desk.answer(TurnAnswer(message, finish_reason, self._turn, self.usage))
        asked = await self.next_request()
        reward = self._desk.take_reward()
        if asked is None:
            failed = int(self.has_failed())
            return Reply(reward=reward, done=True, num_calls=failed, num_failures=failed)
        placed = self._sequences.place(asked.request)
        self._sequence = placed.sequence
        return _reply(placed, asked.request, reward)

    async def close(self) -> None:
        self._desk.end()
        self._endpoint.remove(self._name, self._desk)

    async def begin(self, row: Mapping[str, Any]) -> None:
        """Hands the row to a program that is started elsewhere."""
        self._endpoint.offer(self._name, self._desk, row)

    async def next_request(self) -> Asked | None:
        """None once the program has ended."""
        return await self._desk.next()

    def why_it_ended(self) -> str:
        return "said that it was done"

    def has_failed(self) -> bool:
        return False


class StartedAgent(AgentEnvironment):
    """With a process for the program, which ends with the episode."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        options: Mapping[str, Any],
        spec: ProgramSpec,
        memory_mib: int,
    ) -> None:
        super().__init__(name, endpoint, options)
        self._spec, self._memory_mib = spec, memory_mib
        self._folder = Path(tempfile.mkdtemp(prefix="trimaran-agent-"))
        self._program: Program | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._ended: asyncio.Task[int] | None = None

    async def begin(self, row: Mapping[str, Any]) -> None:
        path = self._folder / ROW_NAME
        path.write_text(json.dumps(row, ensure_ascii=False), encoding="utf-8")
        place = str(self._folder)
        environment = {
            "HOME": place,
            "TMPDIR": place,
            "LANG": "C.UTF-8",
            "OPENAI_BASE_URL": self._endpoint.local_url(self._name),
            "OPENAI_API_KEY": self._desk.key,
            "OPENAI_MODEL": self._endpoint.model,
            "TRIMARAN_ROW": str(path),
        }
        self._program = await Program.start(
            self._spec, self._folder, environment, self._endpoint.local_port, self._memory_mib
        )
        if self._program.listener:
            self._accepting = self._endpoint.accept_at(self._program.listener)
        self._ended = asyncio.create_task(self._program.wait())

    async def next_request(self) -> Asked | None:
        assert self._ended
        asking = asyncio.create_task(self._desk.next())
        try:
            await asyncio.wait({asking, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            return None if self._ended.done() else asking.result()
        finally:
            asking.cancel()

    def why_it_ended(self) -> str:
        assert self._program
        if not (self._ended and self._ended.done()):
            return super().why_it_ended()
        return (
            f"ended with exit code {self._ended.result()}; it printed last:\n{self._program.output}"
        )

    def has_failed(self) -> bool:
        failed = bool(self._ended and self._ended.done() and self._ended.result())
        if failed:
            logger.info("episode %s: the program %s", self._name, self.why_it_ended())
        return failed

    async def close(self) -> None:
        await super().close()
        if self._accepting:
            self._accepting.cancel()
        if self._program:
            await self._program.stop()
        if self._ended:
            self._ended.cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)


def row_of(prompt: Prompt, seed: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """What a program gets of its row. The reference is kept from it, unless the option `answer` gives it."""
    row: dict[str, Any] = {
        "prompt_id": prompt.prompt_id,
        "task": prompt.task,
        "messages": [encode_message(message) for message in prompt.messages],
        "tools": [encode_tool(tool) for tool in prompt.tools],
        "extras": dict(prompt.extras),
        "seed": seed,
        "options": dict(options),
    }
    return {**row, "answer": prompt.answer} if options.get("answer") is True else row


def with_call_ids(message: Message, turn: int) -> Message:
    """A program names a call by its id when it answers it. An engine begins with the same ids in each turn, and
    there are frameworks that take a call whose id they know for one that they have answered."""
    calls = tuple(
        replace(call, call_id=f"call_{turn}_{index}")
        for index, call in enumerate(message.tool_calls)
    )
    return replace(message, tool_calls=calls)


def _reply(placed: Placed, request: Request, reward: float | None) -> Reply:
    """A tool's answer counts as a call; whether it failed is the program's secret."""
    return Reply(
        placed.messages,
        reward,
        num_calls=0 if placed.is_new else sum(one.role == "tool" for one in placed.messages),
        sequence=placed.sequence,
        tools=request.tools if placed.is_new else (),
        max_tokens=request.max_tokens,
    )
