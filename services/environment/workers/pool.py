"""Processes in which the run's own code plays, one episode at a time in each.

take ──▶ an idle process, or a new one ──▶ an episode ──▶ closed in order: idle again
                                                    └──▶ anything else: killed, with all it has started
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from services.environment.loading.load import LoadSpec
from services.environment.workers.lines import decode_tool
from services.environment.workers.process import START_SECONDS, EnvironmentProcess, NurseryProcess
from trimaran.errors import InputError, TrimaranError, UnavailableError
from trimaran.types import Tool

MAX_EPISODES = 1000
"""Then a process is replaced, which bounds what foreign libraries leak."""

logger = logging.getLogger(__name__)


class EnvironmentPool:
    """Example:
    async with EnvironmentPool(LoadSpec(tools=("tools.py:add",)), 4096, 1000) as pool:
        worker = await pool.take()
        await worker.ask({"do": "open", "row": row})
        await pool.give_back(worker)
    """

    def __init__(self, spec: LoadSpec, memory_mib: int, max_chars: int) -> None:
        """`max_chars`: of the text of one answer."""
        self._settings = {"spec": asdict(spec), "memory_mib": memory_mib, "max_chars": max_chars}
        self._nursery: NurseryProcess | None = None
        self._starting = asyncio.Lock()
        self._idle: list[EnvironmentProcess] = []
        self._busy = set[EnvironmentProcess]()
        self.plays = self.rewards = False
        """Whether the code answers messages itself, and whether it gives rewards."""
        self.tools: Sequence[Tool] = ()

    async def __aenter__(self) -> EnvironmentPool:
        """Starts one process. Raises InputError for code that cannot be used."""
        try:
            worker = await self._start()
        except BaseException:
            await self._end()
            raise
        self._idle.append(worker)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(self._end())

    @property
    def num_processes(self) -> dict[str, float]:
        """Those that play, and those that have nothing to do."""
        return {"busy": len(self._busy), "idle": len(self._idle)}

    async def take(self) -> EnvironmentProcess:
        """Raises UnavailableError where no process can be started."""
        while self._idle:
            worker = self._idle.pop()
            if worker.usable:
                break
            worker.kill()
        else:
            try:
                worker = await self._start()
            except InputError as error:  # it could be loaded before
                raise UnavailableError(str(error)) from None
        worker.num_episodes += 1
        self._busy.add(worker)
        return worker

    async def give_back(self, worker: EnvironmentProcess) -> None:
        """Behind an episode. One that failed, or whose code has left processes, is killed."""
        clean = False
        try:
            if worker.usable:
                clean = (await worker.ask({"do": "close"}))["clean"] is True
        except TrimaranError as error:
            logger.warning("an environment does not close: %s", error)
        finally:
            self._busy.discard(worker)
            if clean and worker.num_episodes < MAX_EPISODES:
                self._idle.append(worker)
            else:
                worker.kill()

    async def _start(self) -> EnvironmentProcess:
        async with self._starting:
            if self._nursery is None or self._nursery.gone:
                if self._nursery:
                    await self._nursery.close()
                self._nursery = await NurseryProcess.start(self._settings)
        worker = await self._nursery.start_worker()
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await worker.ask({"do": "load"})
            self._learn(answer)
        except TimeoutError:
            worker.kill()
            raise InputError(
                f"the environment is not made after {START_SECONDS:g} s; see what it waits for"
            ) from None
        except BaseException:
            worker.kill()
            raise
        return worker

    def _learn(self, answer: Mapping[str, Any]) -> None:
        if "refused" in answer:
            raise InputError(answer["refused"])
        self.plays, self.rewards = answer["plays"], answer["rewards"]
        self.tools = tuple(map(decode_tool, answer["tools"]))

    async def _end(self) -> None:
        if self._nursery:
            await self._nursery.close()
